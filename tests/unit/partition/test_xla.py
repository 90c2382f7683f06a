"""Steps with ``jit_compile=True``: XLA compiles their parts, and the results are one device's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from evener import EvenerWarning
from unit.partition.steps import DEVICES, ops_in, partitioned

SHARES = [3, 1, 2]


def compiled_calls(step: evener.DistributedStep, *batch: Any) -> list[str]:
    """Return the devices of the calls that XLA compiles, in the graph that runs a batch."""
    outer = tf.function(lambda *tensors: step(*tensors)).get_concrete_function(*batch)
    return [
        op.device for op in outer.graph.get_operations() if "_XlaMustCompile" in op.node_def.attr
    ]


def by_xla(step: Callable[..., Any]) -> Callable[..., Any]:
    return tf.function(step, jit_compile=True)


def batch(num_samples: int = 13) -> tf.Tensor:
    numbers = np.random.default_rng(1).normal(size=(num_samples, 4))
    return tf.constant(numbers.astype("float32"))


class Step:
    """A step with a variable, dropout and a loss over the batch."""

    def __init__(self) -> None:
        self.weight = tf.Variable(tf.ones([4, 3]))
        self.seed = tf.Variable([1, 2])

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            kept = tf.random.stateless_uniform(tf.shape(x), seed=self.seed) > 0.4
            hidden = tf.tanh(tf.where(kept, x, 0.0) @ self.weight)
            loss = tf.sqrt(tf.reduce_mean(tf.square(hidden)) + 0.1)
        self.seed.assign_add([0, 1])
        self.weight.assign_sub(0.1 * tape.gradient(loss, self.weight))
        return loss


@pytest.mark.parametrize("is_outermost", [True, False])
def test_parts_and_updates_are_compiled(is_outermost: bool) -> None:
    inner = by_xla(Step())
    step = inner if is_outermost else lambda x: inner(x)
    distributed = evener.distribute(step, devices=DEVICES, shares=SHARES)
    devices = compiled_calls(distributed, batch())
    for device in DEVICES:
        assert any(f"CPU:{device[-1]}" in name for name in devices), device
    # The parts, and the update on the owner.
    assert len(devices) > len(DEVICES)


def test_a_part_of_a_language_model_is_one_executable() -> None:
    """Its loss divides by a number that is computed once; weights are reshaped once."""
    layers = keras.layers
    tokens = keras.Input((6,), dtype="int32")
    hidden = layers.Embedding(20, 8)(tokens)
    hidden += layers.MultiHeadAttention(2, 4)(hidden, hidden, use_causal_mask=True)
    hidden = layers.LayerNormalization()(hidden)
    model = keras.Model(tokens, layers.Dense(20)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(y, model(x))
        weights = model.trainable_weights
        for weight, gradient in zip(weights, tape.gradient(value, weights), strict=True):
            weight.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return value

    distributed = evener.distribute(by_xla(step), devices=DEVICES, shares=SHARES)
    text = tf.random.stateless_uniform([12, 7], [1, 2], maxval=20, dtype=tf.int32)
    devices = compiled_calls(distributed, text[:, :-1], text[:, 1:])
    of_parts = [name for name in devices if not name.endswith("CPU:0")]
    assert len(of_parts) == 2, devices


def test_what_nobody_asks_for_is_not_compiled() -> None:
    distributed = evener.distribute(tf.function(Step()), devices=DEVICES, shares=SHARES)
    assert not compiled_calls(distributed, batch())


def test_results_and_random_numbers_are_those_of_one_device() -> None:
    single, several = Step(), Step()
    alone = by_xla(single)
    together = evener.distribute(by_xla(several), devices=DEVICES, shares=SHARES)
    for num_samples in (13, 13, 2, 13):
        x = batch(num_samples)
        np.testing.assert_allclose(alone(x), together(x), rtol=1e-5)
    np.testing.assert_allclose(single.weight, several.weight, rtol=1e-5)


def test_only_what_is_asked_for_is_compiled() -> None:
    """Text, which XLA does not know, stays outside of the function that it compiles."""
    inner = by_xla(lambda x: tf.reduce_sum(tf.exp(x)))

    def step(x: tf.Tensor, names: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return inner(x), tf.strings.upper(names)

    distributed = evener.distribute(step, devices=DEVICES)
    x, names = batch(6), tf.constant(list("abcdef"))
    total, upper = distributed(x, names)
    np.testing.assert_allclose(total, inner(x), rtol=1e-6)
    assert upper.numpy().tolist() == [b"A", b"B", b"C", b"D", b"E", b"F"]
    assert compiled_calls(distributed, x, names)


def test_sizes_in_gradients_of_loops_are_known() -> None:
    """The gradient of a sum repeats a number as often as a part has rows."""

    @by_xla
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            begin = (0, tf.constant(0.0))
            _, total = tf.while_loop(
                lambda k, z: k < 3, lambda k, z: (k + 1, z + tf.reduce_sum(x)), begin
            )
            loss = tf.sin(total)
        return tape.gradient(loss, x)

    distributed = evener.distribute(step, devices=DEVICES, shares=SHARES)
    np.testing.assert_allclose(distributed(batch()), step(batch()), rtol=1e-4)


def test_what_xla_cannot_pass_between_parts_is_told() -> None:
    step = by_xla(lambda x: tf.reduce_sum(tf.boolean_mask(x, x[:, 0] > 0)))
    distributed = evener.distribute(step, devices=DEVICES)
    with pytest.warns(EvenerWarning, match="ENG-082.*(?s:.*)boolean_mask/Where depends on the"):
        found = distributed(batch())
    np.testing.assert_allclose(found, step(batch()), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(("groups", "filters"), [(2, 6), (4, 4), (4, 8)])
def test_convolutions_of_groups_need_no_compiler(groups: int, filters: int, dtype: str) -> None:
    """Keras compiles each of them alone, and XLA takes very long for their gradients on a CPU."""
    keras.utils.set_random_seed(1)
    layer = keras.layers.Conv2D(filters, 3, 2, padding="same", groups=groups, dtype=dtype)
    layer.build((None, 6, 5, 4))
    images = tf.cast(tf.random.stateless_normal((11, 6, 5, 4), (1, 2)), dtype)

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_mean(tf.square(layer(x)))
        return tape.gradient(loss, [x, *layer.trainable_variables])

    made = partitioned(step, [None, 6, 5, 4], dtype=images.dtype)
    assert not any(function.by_xla for function in made.functions)
    distributed = evener.distribute(step, devices=DEVICES, shares=SHARES)
    limit = {"float32": 1e-6, "float64": 1e-14, "bfloat16": 2e-2}[dtype]
    for found, expected in zip(distributed(images), tf.function(step)(images), strict=True):
        difference = tf.cast(tf.abs(found - expected), tf.float64)
        assert float(tf.reduce_max(difference)) <= limit * float(tf.reduce_max(tf.abs(expected)))


def test_a_compiled_function_with_one_among_others_stays_compiled() -> None:
    kernel = tf.ones([3, 3, 2, 4])
    step = by_xla(lambda x: tf.reduce_mean(tf.tanh(tf.nn.conv2d(x, kernel, 1, "SAME"))))
    made = partitioned(step, [None, 6, 5, 4])
    assert any("Conv2D" in ops_in(each.task) for each in made.functions if each.by_xla)


def test_auto_means_what_it_means_on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras turns XLA on where there is a GPU, and off under a strategy."""

    def made(num_gpus: int) -> tuple[keras.Model, bool]:
        keras.utils.set_random_seed(1)
        dropout = keras.layers.Dropout(0.5, seed=2)
        model = keras.Sequential([keras.Input((4,)), dropout, keras.layers.Dense(1)])
        gpus = [tf.config.PhysicalDevice(f"GPU:{k}", "GPU") for k in range(num_gpus)]
        with monkeypatch.context() as patched:
            listed = [*tf.config.list_physical_devices(), *gpus]
            patched.setattr(tf.config, "list_physical_devices", lambda *_: listed)
            model.compile("sgd", "mse")
            return model, model.jit_compile

    x = batch(24)
    expected, is_compiled = made(num_gpus=1)
    assert is_compiled
    with evener.Strategy(devices=DEVICES).scope():
        assert not made(num_gpus=0)[1]
        model, is_compiled = made(num_gpus=1)
        assert is_compiled
    for each in (expected, model):
        each.fit(x, x[:, :1], batch_size=8, verbose=0, shuffle=False)
    for found, wanted in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    with tf.distribute.OneDeviceStrategy("cpu:0").scope():
        assert not made(num_gpus=1)[1]
