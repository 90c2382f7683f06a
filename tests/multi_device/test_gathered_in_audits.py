"""Audits list what a partitioned step computes once."""

from __future__ import annotations

import io
import json
from typing import Any

import keras
import pytest
import tensorflow as tf
from rich.console import Console

import evener
from evener.auditing import Audit, print_audit

pytestmark = pytest.mark.usefixtures("logical_cpus")
HERE = "test_gathered_in_audits.py"


def sorted_loss(y: Any, p: Any) -> Any:
    """A loss that needs the order of all samples."""
    del y
    ranked = tf.sort(p[:, 0])
    return tf.reduce_mean(ranked * tf.range(tf.cast(tf.shape(p)[0], "float32")))


def model_with(loss: Any) -> keras.Model:
    with evener.Strategy(devices=["cpu:0", "cpu:1"], shares=[2, 1]).scope():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
        model.compile("sgd", loss)
    return model


def audited(way: str) -> Audit:
    model = model_with(sorted_loss)
    x, y = tf.ones([6, 5]), tf.ones([6, 3])
    if way == "fit":
        return evener.audit(model, x, y)
    if way == "loop":
        strategy = model.distribute_strategy

        @tf.function
        def step(x: Any) -> Any:
            return strategy.run(lambda batch: sorted_loss(None, model(batch)), args=(x,))

        return evener.audit(step, x)
    return evener.audit(
        evener.distribute(lambda x: sorted_loss(None, x), devices=["cpu:0", "cpu:1"]), x
    )


@pytest.mark.parametrize("way", ["fit", "loop", "distribute"])
def test_names_operation_line_and_bytes(way: str) -> None:
    audit = audited(way)
    found = [operation for operation in audit.gathered if operation.operation == "TopKV2"]
    assert len(found) == 1
    assert found[0].line.partition(":")[0].endswith(HERE)
    assert found[0].num_bytes == 4
    assert Audit.from_json(audit.to_json()).gathered == audit.gathered
    assert json.loads(audit.to_json())["gathered"][0]["num_bytes"] == 4
    text = io.StringIO()
    print_audit(audit, Console(file=text, width=80))
    assert "Gathered operations" in text.getvalue()
    assert HERE in text.getvalue()


def test_says_nothing_where_nothing_is_gathered() -> None:
    audit = evener.audit(model_with("mse"), tf.ones([6, 5]), tf.ones([6, 3]))
    assert audit.gathered == ()
    text = io.StringIO()
    print_audit(audit, Console(file=text, width=80))
    assert "Gathered operations" not in text.getvalue()
