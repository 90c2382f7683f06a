"""Layers of a step: those of them that are of one kind, and their barriers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers

from evener.graph.trace import trace_step
from evener.profiler.layer_costs import layer_costs
from evener.profiler.layers import split_step
from evener.profiler.profile import trace_keras_step
from unit.profiler.models import FLOAT, by_name, costs_of, custom_step, dense, sequence, traced


def names_of(model: keras.Model, **arguments: Any) -> list[str]:
    return list(split_step(traced(model, (1,)), **arguments).chain.names)


def test_a_model_in_a_model_is_divided_where_there_are_few_layers() -> None:
    def make() -> keras.Model:
        x = keras.Input((4,))
        body = keras.Sequential([dense(5, "one", "tanh"), dense(6, "two")], name="body")
        return keras.Model(x, dense(1, "head")(body(x)))

    assert names_of(make()) == ["body/one", "body/two", "head"]
    keras.utils.clear_session(free_memory=False)
    assert names_of(make(), num_wanted=2) == ["body", "head"]


def test_the_layers_inside_a_subclassed_model() -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first = dense(5, "first", "tanh")
            self.second = dense(1, "second")

        def call(self, x: Any) -> Any:
            return self.second(self.first(x))

    model = Own()
    model.compile("adam", "mse")
    step = trace_keras_step(model, tf.TensorSpec([4]), tf.TensorSpec([1]))
    costs = layer_costs(step)
    assert [layer.name for layer in costs.layers] == ["first", "second"]
    assert [layer.weight_bytes for layer in costs.layers] == [100, 24]
    assert [layer.optimizer_bytes for layer in costs.layers] == [200, 48]


def test_a_layer_that_computes_itself_stays_whole_and_is_there_once() -> None:
    x = keras.Input((6, 8))
    seen = layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    assert names_of(keras.Model(x, dense(1, "head")(seen))) == ["attention", "head"]
    shared = dense(4, "shared", "tanh")
    model = sequence((4,), shared, dense(4, "between"), shared, dense(1, "last"))
    assert names_of(model) == ["shared", "between", "last"]


def test_a_recurrent_layer_has_both_passes() -> None:
    split = split_step(
        traced(sequence((5, 3), layers.LSTM(4, name="lstm"), dense(1, "head")), (1,))
    )
    assert split.chain.names == ("lstm", "head")
    lstm = split.layers[0]
    assert any(node.op == "StatelessWhile" for task in lstm.forward for node in task.nodes)
    assert any(node.op == "StatelessWhile" for task in lstm.backward for node in task.nodes)


def test_kinds_differ_by_position_activation_and_width() -> None:
    blocks = [dense(6, f"block_{k}", "tanh") for k in range(4)]
    costs = by_name(costs_of(sequence((6,), *blocks, dense(1, "head")), (1,)))
    # The first one has no gradient for what comes before it.
    assert costs["block_1"].kind == costs["block_2"].kind == costs["block_3"].kind
    assert len({layer.kind for layer in costs.values()}) == 3
    body = [dense(6, "a"), dense(6, "b", "tanh"), dense(6, "c", "relu"), dense(6, "d", "tanh")]
    costs = by_name(costs_of(sequence((6,), *body, dense(7, "e", "tanh"), dense(1, "f")), (1,)))
    assert costs["b"].kind == costs["d"].kind
    assert len({costs[name].kind for name in "bce"}) == 3


def test_a_model_with_a_train_step_of_its_own() -> None:
    class Twice(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x, training=True))
                loss += self.compute_loss(y=y, y_pred=self(-x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    once = costs_of(sequence((4,), dense(6, "a", "tanh"), dense(1, "b")), (1,)).layers
    model = Twice([keras.Input((4,)), dense(6, "a", "tanh"), dense(1, "b")])
    twice = costs_of(model, (1,)).layers
    assert [layer.name for layer in twice] == ["a", "b"]
    assert [layer.weight_bytes for layer in twice] == [layer.weight_bytes for layer in once]
    # And the negative of its inputs.
    assert twice[0].activation_bytes == 2 * once[0].activation_bytes + 4 * FLOAT
    assert twice[0].forward_flops > 1.9 * once[0].forward_flops


def test_a_step_without_layers_is_one_layer() -> None:
    weight = tf.Variable(tf.ones([3, 2]))
    step = custom_step(lambda x: tf.matmul(x, weight), [weight])
    specs = [tf.TensorSpec([None, 3]), tf.TensorSpec([None, 2])]
    found = trace_step(step, specs, [0, 0], autograph=False, with_layers=True)
    (layer,) = layer_costs(found).layers
    assert layer.name == "*"
    assert layer.weight_bytes == layer.optimizer_bytes == 24


def test_slots_without_names_are_found_by_the_updates() -> None:
    first, second = dense(4, "first"), dense(4, "second")
    first.build((None, 4))
    second.build((None, 4))
    variables = [weight.value for weight in (*first.weights, *second.weights)]
    step = custom_step(lambda x: second(first(x)), variables)
    specs = [tf.TensorSpec([None, 4]), tf.TensorSpec([None, 4])]
    found = trace_step(step, specs, [0, 0], autograph=False, with_layers=True)
    assert [layer.optimizer_bytes for layer in layer_costs(found).layers] == [80, 80]


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
def test_what_is_computed_sample_by_sample_does_not_meet(layer: Callable[[], keras.Layer]) -> None:
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
