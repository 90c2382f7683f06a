"""Patches of Keras's models, trainers and optimizers: they work as documented."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from evener import Strategy
from evener._tf_private.models import Trainer, build_for_step, build_from_specs, patch_keras
from evener.errors import EngineError

pytestmark = pytest.mark.usefixtures("logical_cpus")


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}, {"use_ema": True}])
def test_an_optimizer_made_under_no_strategy_follows(options: dict[str, object]) -> None:
    optimizer = keras.optimizers.Adam(**options)
    strategy = Strategy(devices=["cpu:1", "cpu:2"], shares="even")
    with strategy.scope():
        variable = keras.Variable(tf.ones([40]))

    @tf.function
    def step(x: tf.Tensor) -> None:
        strategy.run(
            lambda batch: optimizer.apply([tf.reduce_sum(batch, 0)], [variable]), args=(x,)
        )

    for _ in range(2):
        step(tf.ones([4, 40]))
    assert float(variable[0]) != 1.0
    slots = [slot for slot in optimizer.variables if slot.shape == variable.shape]
    assert {slot.value.device for slot in slots} == {variable.value.device}


def test_elsewhere_an_optimizer_keeps_its_strategy() -> None:
    patch_keras(Strategy)
    mirrored = tf.distribute.MirroredStrategy(["cpu:1"])
    with mirrored.scope():
        inside = keras.optimizers.SGD()
    outside = keras.optimizers.SGD()
    with Strategy(devices=["cpu:1", "cpu:2"]).scope():
        assert inside._distribution_strategy is mirrored
        assert outside._distribution_strategy is tf.distribute.get_strategy()
    assert outside._distribution_strategy is tf.distribute.get_strategy()
    with mirrored.scope():
        assert outside._distribution_strategy is not mirrored


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # how Keras finds the end
@pytest.mark.parametrize("reshuffled", [True, False])
def test_data_comes_in_the_order_of_one_device(reshuffled: bool) -> None:
    """Python's generators lose no batch; a dataset is shuffled as often as on one device."""
    seen: dict[bool, list[np.ndarray]] = {}
    for is_plain in (True, False):
        keras.utils.set_random_seed(1)
        data = tf.data.Dataset.range(12).map(lambda x: (tf.cast(x, tf.float32)[None],) * 2)
        data = data.shuffle(12, seed=3, reshuffle_each_iteration=reshuffled).batch(5)
        rows = seen.setdefault(is_plain, [])

        class Keep(keras.layers.Layer):
            def call(self, x: tf.Tensor, rows: list[np.ndarray] = rows) -> tf.Tensor:
                tf.py_function(lambda value, rows=rows: rows.append(value.numpy()), [x], [])
                return x

        def make() -> keras.Model:
            model = keras.Sequential([Keep(), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            return model

        if is_plain:
            model = make()
        else:
            with Strategy(devices=["cpu:1", "cpu:2"], shares="even").scope():
                model = make()
        model.fit(data, epochs=2, shuffle=False, verbose=0)
        given = ((np.full([2, 1], k, "f4"),) * 2 for k in range(3))
        model.fit(given, epochs=1, shuffle=False, verbose=0)
    assert len(seen[True]) == 2 * 3 + 3
    for batch, expected in zip(seen[True], seen[False], strict=True):
        np.testing.assert_array_equal(batch, expected)


def made_in(strategy: Strategy) -> keras.Model:
    with strategy.scope():
        layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((4,)), *layers])


@pytest.mark.parametrize("devices", [["cpu:1", "cpu:2"], ["cpu:2"]])
@pytest.mark.parametrize("is_nested", [False, True])
def test_compiled_functions_run_where_their_variables_are(
    devices: list[str], is_nested: bool
) -> None:
    model = made_in(Strategy(devices=devices, shares="even"))
    x = tf.random.stateless_normal([5, 4], (1, 2))
    infer = tf.function(lambda batch: model(batch), jit_compile=True)
    called = tf.function(lambda batch: infer(batch) * 2.0) if is_nested else infer
    for _ in range(2):
        np.testing.assert_allclose(called(x), model(x) * (1.0 + is_nested), rtol=1e-5)

    def train(batch: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.sqrt(tf.reduce_sum(tf.square(model(batch))))
        weights = [variable.value for variable in model.trainable_variables]
        gradients: Any = tape.gradient(loss, weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.1 * gradient)

    before = model.get_weights()
    tf.function(train)(x)
    expected = model.get_weights()
    model.set_weights(before)
    tf.function(train, jit_compile=True)(x)
    for found, weight in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(found, weight, rtol=1e-5, atol=1e-6)


def test_a_compiled_function_is_not_differentiated_in_parts() -> None:
    model = made_in(Strategy(devices=["cpu:1", "cpu:2"]))
    infer = tf.function(lambda batch: model(batch), jit_compile=True)
    with pytest.raises(EngineError, match="ENG-092"), tf.GradientTape():
        infer(tf.ones([3, 4]))


def test_other_refusals_of_xla_stay_what_they_are() -> None:
    with tf.device("cpu:3"):
        variable = tf.Variable(tf.ones([2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Trying to access resource"):
        tf.function(lambda: variable + 1.0, jit_compile=True)()


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # how Keras finds the end
def test_one_device_that_is_not_the_first_compiles() -> None:
    model = made_in(Strategy(devices=["cpu:2"]))
    model.compile("sgd", "mse", jit_compile=True)
    losses = model.fit(tf.ones([4, 4]), tf.ones([4, 1]), epochs=2, verbose=0).history["loss"]
    assert losses[1] < losses[0]


class TrainedLayer(Trainer, keras.layers.Dense):
    """A layer with Keras's trainer, which is no model."""

    def __init__(self) -> None:
        keras.layers.Dense.__init__(self, 24)
        Trainer.__init__(self)


@pytest.mark.long
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # how Keras finds the end
def test_a_layer_with_a_trainer_is_patched_too(jit_compile: bool) -> None:
    x, y = np.ones([8, 4], "float32"), np.ones([8, 24], "float32")
    losses = []
    for is_spread in (False, True):
        strategy = Strategy(devices=["cpu:1", "cpu:2"] if is_spread else ["cpu:0"])
        scope = strategy.scope()
        keras.utils.set_random_seed(1)
        with scope:
            layer = TrainedLayer()
            layer.compile("sgd", "mse", jit_compile=jit_compile)
        losses.append(layer.fit(x, y, batch_size=5, epochs=2, verbose=0).history["loss"])
        assert is_spread == bool(strategy.report().num_operations)
    np.testing.assert_allclose(*losses, rtol=1e-5)


class Counts(keras.layers.Layer):
    """Counts how often Python calls it, in all and to train."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = self.num_traces = 0

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Count, and return what is given."""
        self.num_calls += 1
        self.num_traces += bool(training)
        return x


class OwnStep(keras.Model):
    """A model with a step of its own, which counts how often it is called."""

    num_steps = 0

    def train_step(self, data: object) -> dict[str, object]:
        """Count, and train as Keras does."""
        self.num_steps += 1
        return super().train_step(data)


class CountedSGD(keras.optimizers.SGD):
    """Counts the updates that are traced."""

    num_updates = 0

    def update_step(self, gradient: tf.Tensor, variable: keras.Variable, rate: tf.Tensor) -> None:
        self.num_updates += 1
        super().update_step(gradient, variable, rate)


def counting(
    kind: type[keras.Model] = keras.Model, optimizer: Any = "sgd"
) -> tuple[keras.Model, Counts]:
    """Return a model that has all its weights, compiled, and its layer that counts."""
    with Strategy(devices=["cpu:1", "cpu:2"], shares="even").scope():
        counts = Counts()
        x = keras.Input((4,))
        model = kind(x, keras.layers.Dense(1)(counts(x)))
        model.compile(optimizer, "mse", metrics=["mae"])
    counts.num_calls = counts.num_traces = 0
    return model, counts


X = np.arange(24, dtype="float32").reshape(6, 4) / 24.0


@pytest.mark.parametrize("calls", ["train_on_batch", "fit"])
def test_the_first_step_is_traced_once(calls: str) -> None:
    """Losses, metrics and the optimizer are built from the shapes of a batch before."""
    optimizer = CountedSGD(0.1, momentum=0.9)
    model, counts = counting(optimizer=optimizer)
    for epochs in (1, 2):
        if calls == "fit":
            model.fit(X, X[:, :1], batch_size=3, epochs=epochs, verbose=0)
        else:
            model.train_on_batch(X, X[:, :1])
        # Of the kernel, and of the bias.
        assert (counts.num_traces, optimizer.num_updates) == (1, 2)


def test_a_model_of_no_strategy_is_left_to_keras() -> None:
    """Plain Keras builds the model in its first step, and traces that twice."""
    patch_keras(Strategy)
    counts = Counts()
    x = keras.Input((4,))
    model = keras.Model(x, keras.layers.Dense(1)(counts(x)))
    model.compile("sgd", "mse", metrics=["mae"])
    model.fit(X, X[:, :1], batch_size=3, verbose=0)
    assert counts.num_traces == 2


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # how Keras finds the end
@pytest.mark.parametrize("is_built", [True, False])
def test_a_stream_loses_no_batch(is_built: bool) -> None:
    """Batches that come once, and not again for another iterator."""
    given: list[int] = []
    seen: list[float] = []

    def batches() -> object:
        for number in range(4):
            given.append(number)
            yield np.full([2, 4], number, "f4"), np.zeros([2, 1], "f4")

    class Keep(keras.layers.Layer):
        def call(self, x: tf.Tensor) -> tf.Tensor:
            tf.py_function(lambda value: seen.append(float(value[0, 0])), [x], [])
            return x

    with Strategy(devices=["cpu:1", "cpu:2"], shares="even").scope():
        inputs = [keras.Input((4,))] if is_built else []
        model = keras.Sequential([*inputs, Keep(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    stream = batches()
    signature = (tf.TensorSpec([2, 4]), tf.TensorSpec([2, 1]))
    data = tf.data.Dataset.from_generator(lambda: stream, output_signature=signature)
    model.fit(data, epochs=1, shuffle=False, verbose=0)
    # In parts or as a whole, but none of them twice.
    assert list(dict.fromkeys(seen)) == [0.0, 1.0, 2.0, 3.0]
    assert seen == sorted(seen)
    assert given == [0, 1, 2, 3]


def test_a_model_with_a_step_of_its_own_is_left_to_it() -> None:
    """Nothing that a person wrote is called to build the model."""
    model, counts = counting(OwnStep)
    model.fit(X, X[:, :1], batch_size=3, verbose=0)
    # Every call of the layer is one of the step.
    assert counts.num_calls == counts.num_traces == model.num_steps > 0


def test_a_loss_that_fails_on_shapes_gives_the_error_of_the_step() -> None:
    """Errors while building are not raised there; the step says what is wrong."""
    calls: list[int] = []

    def loss(y: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        calls.append(1)
        raise ValueError(f"number {len(calls)} of my own")

    with Strategy(devices=["cpu:1", "cpu:2"], shares="even").scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", loss)
    with pytest.raises(ValueError, match="of my own") as caught:
        model.fit(X, X[:, :1], batch_size=3, verbose=0)
    assert len(calls) >= 2
    assert "number 1 " not in str(caught.value)


def test_a_loss_that_fails_on_symbolic_shapes_alone_trains() -> None:
    """It is built by its first step then, as on one device."""
    calls: list[int] = []

    def loss(y: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        calls.append(1)
        if len(calls) == 1 and not is_plain:
            raise TypeError("not without numbers")
        return keras.ops.mean(keras.ops.square(y - y_pred), axis=-1)

    weights = []
    for is_plain in (True, False):
        calls.clear()
        keras.utils.set_random_seed(1)
        if is_plain:
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("sgd", loss)
        else:
            with Strategy(devices=["cpu:1", "cpu:2"], shares="even").scope():
                model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
                model.compile("sgd", loss)
        model.fit(X, X[:, :1], batch_size=3, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for wanted, got in zip(*weights, strict=True):
        np.testing.assert_allclose(wanted, got, rtol=1e-5)


def test_everything_that_a_step_uses_is_made() -> None:
    batch = (keras.KerasTensor((None, 3)), keras.KerasTensor((None, 1)))
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    build_from_specs(model, batch)
    assert model.built and model.optimizer.built
    assert len(model.metrics_variables) == 4
    # What cannot be built is left to the step.
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    build_from_specs(model, batch)
    assert model.built
    with Strategy(devices=["cpu:0", "cpu:1"], shares="even").scope():
        model = keras.Sequential([keras.layers.Dense(2)])
        model.compile("adam", "mse")
    build_for_step(model, (tf.ones([4, 3]), tf.ones([4, 2])))
    assert model.built and model.optimizer.built
