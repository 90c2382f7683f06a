"""The rules for cuDNN's recurrent layers; there are kernels for GPUs alone.

That what they say is right is seen on a GPU: ``check_recurrent_layers_are_exact`` in `gpu.checks`.
"""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from evener.graph.ops.states import SUM, UNSET, Sharded
from evener.graph.trace import trace_step
from evener.partition.emit import partition_step
from evener.partition.layout import Layout
from evener.plan import Plan

UNITS, FEATURES, LENGTH = 5, 3, 7


def traced(mode: str, *, time_major: bool, dropout: float = 0.0) -> Any:
    """Return a step with a recurrent layer and its gradient, partitioned."""
    gates = {"lstm": 4, "gru": 3}[mode]
    count = gates * UNITS * (FEATURES + UNITS + 2)

    def step(x: tf.Tensor, parameters: tf.Tensor) -> Any:
        axis = 1 if time_major else 0
        if time_major:
            x = tf.transpose(x, [1, 0, 2])
        number = tf.shape(x)[axis]
        first = tf.zeros([1, number, UNITS] if time_major else [number, 1, UNITS])
        with tf.GradientTape() as tape:
            tape.watch(parameters)
            output, *_ = tf.raw_ops.CudnnRNNV3(
                input=x,
                input_h=first,
                input_c=first if mode == "lstm" else 0.0,
                params=parameters,
                sequence_lengths=tf.fill([number], LENGTH),
                rnn_mode=mode,
                dropout=dropout,
                time_major=time_major,
            )
            loss = tf.sqrt(tf.reduce_mean(tf.square(output)))
        return loss, tape.gradient(loss, parameters)

    specs = [tf.TensorSpec([None, LENGTH, FEATURES]), tf.TensorSpec([count])]
    plan = Plan.data_parallel(["cpu:0", "cpu:1"], shares=[2, 1])
    found = trace_step(step, specs, [0, None], autograph=True, num_samples=6)
    return partition_step(found, Layout.of(plan)).partition


def decisions(partition: Any) -> dict[str, Any]:
    found = {node.op: decision for node, decision in partition.sharding.decisions.items()}
    return {op: found.get(op) for op in ("CudnnRNNV3", "CudnnRNNBackpropV3")}


@pytest.mark.parametrize("time_major", [True, False])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_both_directions_run_on_the_parts(mode: str, time_major: bool) -> None:
    partition = traced(mode, time_major=time_major)
    forward, backward = decisions(partition).values()
    rows = Sharded(1 if time_major else 0)
    assert forward.outputs[:2] == (rows, rows)
    assert forward.outputs[3:] == (UNSET, UNSET)
    assert backward.outputs[:2] == (rows, rows)
    assert backward.outputs[3] == SUM


def test_with_dropout_it_is_gathered_in_both_directions() -> None:
    """Its masks are drawn by cuDNN, for the whole batch."""
    assert decisions(traced("lstm", time_major=True, dropout=0.5)) == {
        "CudnnRNNV3": None,
        "CudnnRNNBackpropV3": None,
    }
