"""`tf.summary` in replicas: written once, by the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from .strategies import Wrap, replica_float


def written(folder: Path) -> list[tuple[str, float, int]]:
    """Return the tag, value and step of every scalar in the event files of a folder."""
    found = []
    for path in sorted(folder.glob("*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                number = tf.make_ndarray(value.tensor)
                found.append((value.tag, float(number), event.step))
    return found


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_scalars_are_written_once(tmp_path: Path, strategy: Any, call: Wrap, where: str) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path))

    def fn() -> None:
        if where == "outside":
            tf.summary.scalar("number", replica_float() + 5.0, step=3)
            return
        with writer.as_default():
            tf.summary.scalar("number", replica_float() + 5.0, step=3)

    with writer.as_default():
        call(lambda: strategy.run(fn))()
    writer.close()
    assert written(tmp_path) == [("number", 5.0, 3)]


def test_steps_and_conditions(tmp_path: Path, strategy: Any) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path))
    with strategy.scope():
        step = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

    @tf.function
    def train() -> None:
        def fn() -> None:
            with tf.summary.record_if(lambda: tf.equal(step % 2, 0)):
                tf.summary.scalar("number", replica_float(), step=step)

        strategy.run(fn)
        step.assign_add(1)

    with writer.as_default():
        for _ in range(3):
            train()
    writer.close()
    assert [(tag, at) for tag, _, at in written(tmp_path)] == [("number", 0), ("number", 2)]


def test_outside_of_replicas(tmp_path: Path, strategy: Any) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path))
    with writer.as_default(), strategy.scope():
        tf.summary.scalar(
            "number", strategy.reduce("SUM", strategy.run(replica_float), axis=None), step=1
        )
    writer.close()
    assert written(tmp_path) == [("number", 0.0, 1)]
