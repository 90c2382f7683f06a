"""Collectives across workers: what they refuse, and whose parts are whose."""

from __future__ import annotations

import itertools

import pytest
import tensorflow as tf

from evener.engine.partition import collectives
from evener.engine.partition.collectives import Collectives
from evener.engine.pipeline.layout import Layout, WorkerGroup
from evener.errors import EngineError
from evener.plan import Replica, Stage

GROUP = WorkerGroup(index=1, count=2)


def test_text_is_not_joined() -> None:
    with tf.Graph().as_default(), pytest.raises(EngineError, match="ENG-094") as caught:
        Collectives(GROUP).join_rows(tf.constant(["a"]), [tf.constant(1)] * 2, 0)
    assert "string" in str(caught.value)


def test_the_order_of_large_unsigned_numbers_is_not_lost() -> None:
    with tf.Graph().as_default(), pytest.raises(EngineError, match="ENG-094") as caught:
        Collectives(GROUP).reduce(tf.constant([2**63], tf.uint64), "max")
    assert "uint64" in str(caught.value)


def test_keys_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "_calls", itertools.count(2**15))
    with tf.Graph().as_default(), pytest.raises(EngineError, match="ENG-095"):
        Collectives(GROUP).reduce(tf.constant([1.0]), "sum")


def layout(*replicas: tuple[str, ...]) -> Layout:
    return Layout(
        tuple(
            Replica(share=1, stages=tuple(Stage(device=name, layers=(name,)) for name in names))
            for names in replicas
        ),
        group=GROUP,
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
