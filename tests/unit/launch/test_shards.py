from __future__ import annotations

import pytest

from evener.launch.shards import loop_over_shards

RUN = "    strategy.run(step, args=(x,))\n"
REPLICAS = "n = strategy.num_replicas_in_sync\n"


@pytest.mark.parametrize(
    "head",
    [
        "for x in tf.split(batch, strategy.num_replicas_in_sync):",
        "for i, x in enumerate(np.array_split(batch, n)):",
        "for x, y in zip(tf.split(a, num_or_size_splits=n), b):",
        "for x in shards:",
        "for x, y in list(zip(shards, more)):",
        "for x in tf.split(batch, num_gpus):",
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
        f"{REPLICAS}num_gpus = 2\nshards, more = tf.split(x, n), tf.split(y, n)\n"
        "devices = tf.config.list_logical_devices('GPU') or ['/cpu:0']\n"
    )
    source = f"{given}for batch in batches:\n  {head}\n  {RUN}"
    assert loop_over_shards(source, 7, 2) == 6
    # The line of the loop is not inside it.
    assert loop_over_shards(source, 5, 2) is None


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
    assert loop_over_shards(f"{given}{head}\n{RUN}", 5, 2) is None


def test_a_number_of_devices_by_its_name_must_be_that_of_the_replicas() -> None:
    source = f"num_gpus = 2\nfor x in tf.split(batch, num_gpus):\n{RUN}"
    assert loop_over_shards(source, 3, 2) == 2
    assert loop_over_shards(source, 3, 4) is None


def test_a_text_that_is_no_python_holds_no_loops() -> None:
    assert loop_over_shards("for x in (", 1, 2) is None
