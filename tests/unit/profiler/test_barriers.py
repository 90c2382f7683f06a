"""Barriers of layers, read from the tasks of traced steps."""

from __future__ import annotations

from collections.abc import Callable

import keras
import pytest
import tensorflow as tf
from keras import layers

from evener.profiler.layer_costs import layer_costs
from evener.profiler.profile import trace_keras_step
from unit.profiler.models import by_name, costs_of, dense, sequence


def test_a_normalization_meets_for_its_mean_its_variance_and_their_gradients() -> None:
    norms = [layers.BatchNormalization(name=f"norm_{k}") for k in range(2)]
    model = sequence((6,), dense(8, "a"), norms[0], dense(4, "b"), norms[1], dense(1, "c"))
    found = by_name(costs_of(model, (1,)))
    met = {name: (layer.forward_barriers, layer.backward_barriers) for name, layer in found.items()}
    assert met == {"a": (0, 0), "norm_0": (2, 1), "b": (0, 0), "norm_1": (2, 1), "c": (0, 0)}
    # What it normalizes and the squares of it wait, or their gradients, and nothing elsewhere.
    assert 8 * 4 <= found["norm_0"].barrier_bytes <= 4 * 8 * 4
    assert found["a"].barrier_bytes == found["b"].barrier_bytes == 0


@pytest.mark.parametrize(
    "layer",
    [
        lambda: layers.LayerNormalization(name="x"),
        lambda: layers.BatchNormalization(name="x", trainable=False),
        lambda: layers.Dropout(0.5, name="x"),
    ],
    ids=["layer norm", "frozen batch norm", "dropout"],
)
def test_what_is_computed_sample_by_sample_does_not_meet(
    layer: Callable[[], keras.Layer],
) -> None:
    costs = costs_of(sequence((6,), dense(8, "a"), layer(), dense(1, "c")), (1,))
    assert costs.last_barrier == -1


def test_a_loss_of_all_pairs_meets_where_the_model_ends() -> None:
    def contrast(wanted: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
        centre = tf.reduce_mean(found, axis=0, keepdims=True)
        return tf.reduce_mean(tf.square(found - centre - wanted))

    model = sequence((6,), dense(8, "a"), dense(1, "b"))
    model.compile("sgd", contrast)
    step = trace_keras_step(model, tf.TensorSpec([6]), tf.TensorSpec([1]))
    first, last = layer_costs(step).layers
    assert first.forward_barriers + first.backward_barriers == 0
    assert last.forward_barriers + last.backward_barriers >= 1
