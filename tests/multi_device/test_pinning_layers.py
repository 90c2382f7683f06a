"""`evener.pin` on blocks, functions, layers and models: computing, variables, slots, updates."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import evener
from evener.errors import PlacementError

RANDOM = np.random.default_rng(11)
X = RANDOM.normal(size=(48, 32)).astype("float32")
CLASSES = RANDOM.integers(0, 4, size=48).astype("int32")
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
HOMES = ["CPU:1"] * 2 + ["CPU:2"] * 4


def dense() -> tuple[layers.Layer, ...]:
    wide = [layers.Dense(64, activation="tanh") for _ in range(2)]
    return (*wide, layers.Dense(4))


def pinned_dense() -> tuple[layers.Layer, ...]:
    pairs = zip((1, 2, 2), dense(), strict=True)
    return tuple(evener.pin(f"cpu:{number}")(layer) for number, layer in pairs)


def sequential(parts: tuple[layers.Layer, ...]) -> keras.Model:
    return keras.Sequential([keras.Input((32,)), *parts])


def sequential_built_late(parts: tuple[layers.Layer, ...]) -> keras.Model:
    return keras.Sequential(list(parts))


def functional(parts: tuple[layers.Layer, ...]) -> keras.Model:
    inputs = outputs = keras.Input((32,))
    for part in parts:
        outputs = part(outputs)
    return keras.Model(inputs, outputs)


class Subclassed(keras.Model):
    def __init__(self, parts: tuple[layers.Layer, ...]) -> None:
        super().__init__()
        self.parts = list(parts)

    def call(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x


def pinned_afterwards(parts: tuple[layers.Layer, ...]) -> keras.Model:
    model = functional(dense())
    for number, layer in zip((1, 2, 2), model.layers[1:], strict=True):
        assert evener.pin(f"cpu:{number}")(layer) is layer
    del parts
    return model


def compiled(model: keras.Model, **options: Any) -> keras.Model:
    model.compile(keras.optimizers.Adam(0.01, epsilon=1e-2), LOSS, **options)
    return model


def trained(model: keras.Model) -> list[np.ndarray]:
    model.fit(X, CLASSES, batch_size=16, epochs=1, shuffle=False, verbose=0)
    return model.get_weights()


def devices_of(variables: Any) -> list[str]:
    return [variable.value.device[-5:] for variable in variables]


@pytest.fixture(scope="module")
def start() -> list[np.ndarray]:
    keras.utils.set_random_seed(2)
    return sequential(dense()).get_weights()


@pytest.fixture(scope="module")
def wanted(start: list[np.ndarray]) -> list[np.ndarray]:
    model = compiled(sequential(dense()))
    model.set_weights(start)
    return trained(model)


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("make", "eagerly"),
    [
        (Subclassed, False),
        (pinned_afterwards, False),
        (functional, True),
        pytest.param(sequential, False, marks=LONG),
        pytest.param(sequential_built_late, False, marks=LONG),
        pytest.param(functional, False, marks=LONG),
        pytest.param(Subclassed, True, marks=LONG),
        pytest.param(pinned_afterwards, True, marks=LONG),
    ],
)
def test_fit_keeps_everything_on_the_pinned_devices(
    make: Callable[..., keras.Model], eagerly: bool, start: Any, wanted: Any
) -> None:
    model = compiled(make(pinned_dense()), run_eagerly=eagerly)
    model(X[:1])
    model.set_weights(start)
    for got, other in zip(trained(model), wanted, strict=True):
        np.testing.assert_allclose(got, other, rtol=1e-5, atol=1e-6)
    assert devices_of(model.weights) == HOMES
    slots = model.optimizer.variables[2:]
    assert devices_of(slots) == [home for home in HOMES for _ in range(2)]


def test_a_step_of_keras_moves_what_has_to_move_and_no_more() -> None:
    model = compiled(sequential(pinned_dense()))
    audit = evener.audit(model, X[:16], CLASSES[:16])
    # Inputs, activations and their gradient: 2,048 + 2 x 4,096; plain Keras moves 214,896.
    assert 10_240 <= audit.moved_bytes <= 10_444
    updates = [o for o in audit.operations if o.type == "AssignSubVariableOp"]
    assert len(updates) == 6
    assert "IdentityN" not in {o.type for o in audit.operations}
    heavy = [o for o in audit.operations if o.type == "Square" and "adam" in o.name]
    assert heavy
    assert {o.device for o in heavy} == {"cpu:1", "cpu:2"}


def test_a_step_of_a_loop_moves_what_has_to_move_and_no_more() -> None:
    with evener.pin("cpu:1"):
        first = tf.Variable(tf.random.normal([64, 64]))
    with evener.pin("cpu:2"):
        second = tf.Variable(tf.random.normal([64, 64]))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            with evener.pin("cpu:1"):
                h = tf.nn.relu(x @ first)
            with evener.pin("cpu:2"):
                loss = tf.reduce_sum(tf.nn.relu(h @ second))
        gradients = tape.gradient(loss, [first, second])
        for variable, gradient in zip((first, second), gradients, strict=True):
            with tf.device(variable.device):
                variable.assign_sub(gradient * 0.01)
        return loss

    assert evener.audit(step, tf.ones([8, 64])).moved_bytes <= 6_152


PLAIN = """
import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np, tensorflow as tf, evener
from keras import layers

with tf.device("CPU:1"):
    one, first = layers.Dense(64, activation="tanh"), tf.Variable(tf.random.normal([64, 64]))
    one.build((None, 32))
with tf.device("CPU:2"):
    two, three = layers.Dense(64, activation="tanh"), layers.Dense(4)
    two.build((None, 64)), three.build((None, 64))
    second = tf.Variable(tf.random.normal([64, 64]))

class Model(keras.Model):
    def call(self, x):
        with tf.device("CPU:1"):
            x = one(x)
        with tf.device("CPU:2"):
            return three(two(x))

model = Model()
model.one, model.two, model.three = one, two, three
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss)

def step(x):
    with tf.GradientTape() as tape:
        with tf.device("CPU:1"):
            h = tf.nn.relu(x @ first)
        with tf.device("CPU:2"):
            loss = tf.reduce_sum(tf.nn.relu(h @ second))
    for variable, gradient in zip((first, second), tape.gradient(loss, [first, second])):
        with tf.device(variable.device):
            variable.assign_sub(gradient * 0.01)
    return loss

print(evener.audit(step, tf.ones([8, 64])).moved_bytes)
x, y = tf.ones((16, 32)), tf.zeros(16, tf.int32)
model(x)
model.optimizer.build(model.trainable_variables)
model.train_step((x, y))
print(evener.audit(lambda x, y: model.train_step((x, y))["loss"], x, y).moved_bytes)
"""


@pytest.mark.long
def test_plain_tensorflow_moves_more(run_python: Any) -> None:
    loop, keras_step = map(int, run_python(PLAIN, num_cpus=3).stdout.split())
    assert loop == 57_352
    assert keras_step == 214_896


def test_a_block_a_function_and_a_traced_function() -> None:
    def where() -> tf.Tensor:
        return tf.ones([3]) * 2.0

    with evener.pin("cpu:2"):
        assert where().device.endswith("CPU:2")
        with evener.pin("cpu:1"):
            assert where().device.endswith("CPU:1")
        assert where().device.endswith("CPU:2")
    assert where().device.endswith("CPU:0")
    pinned = evener.pin("CPU:1")(where)
    assert pinned.__name__ == "where"
    assert pinned().device.endswith("CPU:1")
    assert tf.function(pinned)().backing_device.endswith("CPU:1")
    assert evener.pin("cpu:1")(tf.function(where))().backing_device.endswith("CPU:1")


def test_autograph_converts_a_pinned_function() -> None:
    @tf.function
    @evener.pin("cpu:1")
    def halved(x: tf.Tensor) -> tf.Tensor:
        while tf.reduce_max(x) > 1.0:
            with evener.pin("cpu:2"):
                x = x / 2.0
        return x

    assert float(halved(tf.constant(12.0))) == 0.75


def test_layers_that_are_made_in_a_block_are_pinned() -> None:
    with evener.pin("cpu:1"):
        model = keras.Sequential([layers.Dense(3), evener.pin("cpu:2")(layers.Dense(2))])
    model(tf.ones([1, 4]))
    assert devices_of(model.weights) == ["CPU:1"] * 2 + ["CPU:2"] * 2
    with tf.GradientTape() as tape:
        y = model(tf.ones([1, 4]))
    gradients = tape.gradient(y, model.trainable_variables)
    assert [g.device[-5:] for g in gradients] == ["CPU:1"] * 2 + ["CPU:2"] * 2


def test_threads_do_not_see_each_others_blocks() -> None:
    seen: dict[int, str] = {}
    both = threading.Barrier(2)

    def work(number: int) -> None:
        with evener.pin(f"cpu:{number}"), tf.GradientTape() as tape:
            both.wait(timeout=20)
            x = tf.Variable(2.0)
            y = x * x
            both.wait(timeout=20)
        seen[number] = tape.gradient(y, x).device[-5:]

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {1: "CPU:1", 2: "CPU:2"}


def test_clipping_and_averages_stay_beside_the_variables() -> None:
    model = sequential(pinned_dense())
    optimizer = keras.optimizers.Adam(0.01, global_clipnorm=0.1, use_ema=True, weight_decay=0.1)
    model.compile(optimizer, LOSS)
    audit = evener.audit(model, X[:16], CLASSES[:16])
    assert audit.moved_bytes <= 10_700
    assert not [o for o in audit.operations if o.type == "L2Loss" and o.device == "cpu:0"]


def test_under_a_strategy_a_pinned_layer_owns_its_variables_where_it_is(
    start: Any, wanted: Any
) -> None:
    strategy = evener.Strategy(devices=["cpu:0", "cpu:1"], shares="even")
    with strategy.scope():
        first, second, third = dense()
        model = compiled(sequential((first, evener.pin("cpu:3")(second), third)))
        model.set_weights(start)
    for got, other in zip(trained(model), wanted, strict=True):
        np.testing.assert_allclose(got, other, rtol=1e-4, atol=1e-5)
    assert devices_of(second.weights) == ["CPU:3"] * 2
    owned = {o.path: o.device for o in strategy.owner_registry.variables}
    assert {owned[v.path] for v in second.weights} == {"cpu:3"}


def test_what_is_in_use_is_not_moved() -> None:
    model = functional(dense())
    layer = model.layers[1]
    function = tf.function(lambda x: layer(x))
    function(X[:1])
    with pytest.raises(PlacementError, match="PLACE-005") as raised:
        evener.pin("cpu:1")(layer)
    assert "traced function" in raised.value.what
    assert devices_of(layer.weights) == ["CPU:0"] * 2
    other = model.layers[2]
    model.compile("adam", LOSS)
    model.optimizer.build(model.trainable_variables)
    with pytest.raises(PlacementError, match="PLACE-005") as raised:
        evener.pin("cpu:1")(other)
    assert "optimizer" in raised.value.what


def test_xla_is_not_chosen_and_is_refused() -> None:
    layer = evener.pin("cpu:1")(layers.Dense(2))
    layer.build((None, 3))
    function = tf.function(lambda x: layer(x), jit_compile=True)
    with pytest.raises(PlacementError, match="PLACE-006"):
        function(tf.ones([1, 3]))
    model = keras.Sequential([keras.Input((3,)), layer])
    with pytest.warns(UserWarning, match="jit_compile=False"):
        model.compile("sgd", "mse", jit_compile=True)
    assert not model.jit_compile


def test_gradients_for_loops() -> None:
    from evener import pinned_gradients

    with tf.device("CPU:2"):
        weight = tf.Variable(3.0)
    with tf.GradientTape() as tape, tf.device("CPU:2"):
        y = weight * weight
    gradient = pinned_gradients(y, {"w": weight}, tape=tape)["w"]
    assert (float(gradient), gradient.device[-5:]) == (6.0, "CPU:2")
    with pytest.raises(PlacementError, match="PLACE-007"):
        pinned_gradients(y, weight)
    tape = tf.GradientTape()
    with pytest.raises(PlacementError, match="PLACE-008"):
        pinned_gradients(y, weight, tape=_begun_before(tape))
    kernel = keras.Variable(2.0)

    @tf.function
    def step() -> Any:
        return pinned_gradients(
            kernel * kernel * 1.0, [kernel, weight], unconnected_gradients="zero"
        )

    assert [float(g) for g in step()] == [4.0, 0.0]


def _begun_before(tape: tf.GradientTape) -> tf.GradientTape:
    with tape:
        pass
    tape._evener_records_devices = False
    return tape
