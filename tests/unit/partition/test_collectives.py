"""Collectives across workers: what they refuse, and whose parts are whose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from evener.errors import EngineError
from evener.partition.collectives import Collectives
from evener.partition.layout import Layout
from evener.plan import Replica, Stage


class Twice:
    """Group of this worker, 1, and another one with the same values."""

    index = 1

    def __init__(self) -> None:
        self.labels: list[str] = []

    def reduce(self, label: str, arrays: list[np.ndarray], combine: str) -> list[np.ndarray]:
        self.labels.append(label)
        return [array + array for array in arrays]

    def gather(self, label: str, array: np.ndarray) -> list[np.ndarray]:
        self.labels.append(label)
        return [array, array]

    def commit(self) -> None:
        self.labels.append("commit")


def collectives() -> tuple[Twice, Collectives]:
    group: Any = Twice()
    return group, Collectives(group, "checksum")


def test_exchanges_come_in_the_order_in_which_they_were_added() -> None:
    group, found = collectives()

    @tf.function
    def step(x: Any) -> Any:
        # The results are read in the other order, and one of them not at all.
        first, _ = found.reduce([x, x], "sum")
        found.reduce([x], "max")
        last = found.join_rows(x, 0)
        found.commit()
        return last, first

    last, first = step(tf.constant([1.0, 2.0]))
    assert group.labels == ["checksum 0 sum", "checksum 1 max", "checksum 2 rows 0", "commit"]
    assert last.numpy().tolist() == [1.0, 2.0, 1.0, 2.0]
    assert first.numpy().tolist() == [2.0, 4.0]


def test_texts_are_joined() -> None:
    _, found = collectives()
    joined = tf.function(lambda texts: found.join_rows(texts, 0))(tf.constant([b"a", b""]))
    assert joined.numpy().tolist() == [b"a", b"", b"a", b""]


@pytest.mark.parametrize(
    ("exchange", "kind"),
    [
        (lambda found: found.reduce([tf.constant(["a"])], "max"), "string"),
        (
            lambda found: found.join_rows(tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[]), 0),
            "resource",
        ),
    ],
    ids=["texts", "resources"],
)
def test_what_is_not_exchanged_is_refused(exchange: Any, kind: str) -> None:
    _, found = collectives()
    with tf.Graph().as_default(), pytest.raises(EngineError, match="ENG-094") as caught:
        exchange(found)
    assert kind in str(caught.value)


def layout(*replicas: tuple[str, ...]) -> Layout:
    group: Any = Twice()
    return Layout(
        tuple(
            Replica(share=1, stages=tuple(Stage(device=name, layers=(name,)) for name in names))
            for names in replicas
        ),
        group=group,
    )


def test_a_worker_computes_its_own_parts() -> None:
    found = layout(("worker:0/cpu:0",), ("worker:1/cpu:0",), ("worker:1/cpu:1",))
    assert found.workers == (0, 1, 1)
    assert [found.is_own(part) for part in range(3)] == [False, True, True]
    assert found.device(2, ()) == "/device:CPU:1"


def test_stages_on_two_workers_are_refused() -> None:
    with pytest.raises(EngineError, match="ENG-096") as caught:
        _ = layout(("worker:0/cpu:0", "worker:1/cpu:0")).workers
    assert "worker:0/cpu:0, worker:1/cpu:0" in str(caught.value)
