from __future__ import annotations

import ast

import pytest

from evener.doctor.questions.shards import is_over_devices

REPLICAS = "n = strategy.num_replicas_in_sync\n"


def found(given: str, head: str) -> bool:
    tree = ast.parse(f"{given}{head}\n    pass\n")
    loop = tree.body[-1]
    assert isinstance(loop, ast.For)
    return is_over_devices(loop.iter, tree)


@pytest.mark.parametrize(
    "head",
    [
        "for x in tf.split(batch, strategy.num_replicas_in_sync):",
        "for i, x in enumerate(np.array_split(batch, n)):",
        "for x, y in zip(tf.split(a, num_or_size_splits=n), b):",
        "for x in shards:",
        "for x, y in list(zip(shards, more)):",
        "for x in strategy.experimental_local_results(batch):",
        "for i in range(n):",
        "for i in range(len(devices)):",
        "for device in devices:",
        "for worker in strategy.extended.worker_devices:",
        "for x in [batch[i::n] for i in range(n)]:",
    ],
)
def test_loops_over_shards(head: str) -> None:
    given = (
        f"{REPLICAS}shards, more = tf.split(x, n), tf.split(y, n)\n"
        "devices = tf.config.list_logical_devices('GPU') or ['/cpu:0']\n"
    )
    assert found(given, head)


@pytest.mark.parametrize(
    "head",
    [
        "for x in batches:",
        "for x in strategy.experimental_distribute_dataset(batches):",
        "for epoch in range(2):",
        "for epoch in range(epochs):",
        "for i in range(steps // n):",
        "for x in tf.data.Dataset.from_tensor_slices(a).batch(8 * n):",
        "for x in np.array_split(data, 2):",
        "for x in np.array_split(data, num_batches):",
        "for x in np.array_split(data, len(data) // 8):",
        "for x in text.split():",
        "for x in itself:",
    ],
)
def test_other_loops(head: str) -> None:
    given = f"{REPLICAS}epochs = num_batches = 2\nitself = itself\n"
    assert not found(given, head)
