"""The law in corners: uses of Keras that a split of the batch could quietly get wrong."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from .candidates import Place
from .compare import state_of
from .harness import FIVE, THREE, TWO, Layout, agree, compile_model, fit_again, fit_model, sgd
from .models import classes, cnn, mlp, numbers, pairs, pictures, regression, regressor, tabular
from .tolerances import tolerance


def test_fit_inside_the_scope() -> None:
    """Building, fitting, evaluating and predicting all inside the scope."""
    x, y = regression(43)

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = regressor()
            model.compile(sgd(), **numbers())
            results = fit_again(place, model, (x, y))
            results["evaluate"] = model.evaluate(x, y, verbose=0, return_dict=True)
            results["predict"] = model.predict(x, verbose=0)
        return results

    agree(experiment, THREE)


def calls_a_keras_loss(y_true: object, y_pred: object) -> object:
    """Return a scalar that Keras reduces: under a strategy it would divide by the replicas."""
    return keras.losses.MeanSquaredError()(y_true, y_pred) + 0.1


def test_a_keras_loss_inside_a_function() -> None:
    """Keras's own reductions, called in a function that a person wrote."""
    data = regression(75)
    agree(lambda place: fit_model(place, regressor, data, lambda: {"loss": calls_a_keras_loss}))


class Reconstructs(layers.Layer):
    """Adds the loss of a reconstruction, by a Keras loss, in training alone or always."""

    def __init__(self, *, always: bool, reduction: str) -> None:
        super().__init__()
        self.always = always
        self.error = keras.losses.MeanSquaredError(reduction=reduction)

    def build(self, shape: tuple[int, ...]) -> None:
        self.back = layers.Dense(shape[-1])
        self.back.build(shape)

    def call(self, x: object, training: bool = False) -> object:
        if self.always or training:
            self.add_loss(0.05 * self.error(x, self.back(x)))
        return x


@pytest.mark.long
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum"])
def test_a_keras_loss_inside_a_layer(reduction: str) -> None:
    """Keras's own reductions, called in a layer on a share."""

    def build() -> keras.Model:
        inside = Reconstructs(always=True, reduction=reduction)
        return keras.Sequential([keras.Input((8,)), inside, layers.Dense(1)])

    agree(lambda place: fit_model(place, build, regression(75), numbers), THREE)


@pytest.mark.long
def test_losses_added_in_training_alone() -> None:
    """The first layer adds a sum while training, the second a mean always; then evaluate."""

    def build() -> keras.Model:
        first = Reconstructs(always=False, reduction="sum")
        second = Reconstructs(always=True, reduction="sum_over_batch_size")
        return keras.Sequential([keras.Input((8,)), first, second, layers.Dense(1)])

    def experiment(place: Place) -> dict[str, object]:
        x, y = regression(43)
        model = compile_model(place, build, numbers)
        results = fit_again(place, model, (x, y), validation_data=(x, y))
        results["evaluate"] = model.evaluate(x, y, batch_size=16, verbose=0, return_dict=True)
        return results

    agree(experiment, THREE)


def test_two_models_that_share_a_layer() -> None:
    """Two compiled models train the same layer in turns, each with its own optimizer."""
    x, y = regression(64)

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            inputs = keras.Input((8,))
            shared = layers.Dense(6, activation="tanh")(inputs)
            first = keras.Model(inputs, layers.Dense(1)(shared))
            second = keras.Model(inputs, layers.Dense(8)(shared))
            first.compile(sgd(), loss="mse")
            second.compile(keras.optimizers.Adam(0.01, epsilon=1e-3), loss="huber")
        for begin in range(0, 64, 8):
            rows = slice(begin, begin + 8)
            first.train_on_batch(x[rows], y[rows])
            second.train_on_batch(x[rows], x[rows])
        return {"one": state_of(first), "two": state_of(second)}

    agree(experiment, THREE)


def test_predict_with_a_model_that_nobody_built() -> None:
    """predict is the first call of all, without compile."""
    x, _ = regression(11)

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = keras.Sequential([layers.Dense(5, activation="tanh"), layers.Dense(2)])
        return {"all": model.predict(x, batch_size=4, verbose=0), "one": model(x[:1]).numpy()}

    agree(experiment, FIVE)


def test_outputs_of_whole_numbers() -> None:
    """An output that has no gradient, beside one that a scalar loss trains."""

    def squares(y_true: object, y_pred: object) -> object:
        return ops.mean(ops.square(ops.one_hot(y_true, 4) - y_pred))

    def build() -> keras.Model:
        inputs = keras.Input((8,))
        scores = layers.Dense(4)(inputs)
        kind = layers.Lambda(lambda t: ops.argmax(t, axis=-1))(scores)
        return keras.Model(inputs, {"kind": kind, "scores": scores})

    def experiment(place: Place) -> dict[str, object]:
        x, y = tabular(64)
        model = compile_model(place, build, lambda: {"loss": {"scores": squares, "kind": None}})
        results = fit_again(place, model, (x, {"scores": y, "kind": y}))
        results["predict"] = model.predict(x[:21], batch_size=8, verbose=0)
        return results

    agree(experiment, THREE)


def test_words() -> None:
    """Strings as inputs, looked up inside the model."""
    words = np.array(["wagon", "horse", "ox", "bar"])
    drawn = words[np.random.default_rng(3).integers(0, 4, size=(48, 3))]
    y = (drawn == "ox").sum(axis=1, keepdims=True).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((drawn, y)).batch(11)

    def build() -> keras.Model:
        lookup = layers.StringLookup(vocabulary=list(words[:3]))
        table = layers.Embedding(5, 4)
        return keras.Sequential(
            [keras.Input((3,), dtype="string"), lookup, table, layers.Flatten(), layers.Dense(1)]
        )

    agree(lambda place: fit_model(place, build, (data,), lambda: {"loss": "mse"}), THREE)


@pytest.mark.long
def test_masked_recurrence() -> None:
    """A mask from the data through two recurrent layers to the loss and the metrics."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(43, 7, 3)).astype("float32")
    x[np.arange(7)[None, :] >= rng.integers(1, 8, size=43)[:, None]] = 0.0
    y = np.tanh(np.cumsum(x[:, :, :1], axis=1)).astype("float32")

    def build() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((7, 3)),
                layers.Masking(0.0),
                layers.GRU(6, return_sequences=True),
                layers.Dense(1),
            ]
        )

    agree(lambda place: fit_model(place, build, (x, y), numbers), FIVE)


@pytest.mark.long
@pytest.mark.parametrize("feature", ["xla", "mixed_float16"])
def test_synchronised_batchnorm_with(feature: str) -> None:
    """The CNN, whose replicas advance together, under XLA and in half precision."""

    def experiment(place: Place) -> dict[str, object]:
        if feature != "xla":
            keras.config.set_dtype_policy(feature)
        # Not the accuracy: in half precision rounding may change which class is the largest.
        compiled = {"loss": classes()["loss"], "jit_compile": feature == "xla"}
        return fit_model(place, cnn, pictures(48), lambda: compiled, epochs=3)

    agree(experiment, within=tolerance(f"cnn_{feature}"))


class OwnMetrics(keras.Model):
    """A model that counts metrics of its own and drops one of Keras's."""

    def __init__(self) -> None:
        super().__init__()
        self.head = layers.Dense(1)
        self.far = keras.metrics.Mean(name="far")

    def call(self, x: object) -> object:
        return self.head(x)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Return the largest error beside what Keras counts."""
        self.far.update_state(ops.max(ops.abs(y - y_pred)))
        return super().compute_metrics(x, y, y_pred, sample_weight)


def test_own_compute_metrics() -> None:
    """A model that overrides compute_metrics."""
    agree(lambda place: fit_model(place, OwnMetrics, regression(75), numbers), THREE)


def test_weights_without_gradient() -> None:
    """A layer that no output depends on stays as it is, under a clip over all gradients."""

    class Idle(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.idle = layers.Dense(1), layers.Dense(3)

        def call(self, x: object) -> object:
            self.idle(x)
            return self.head(x)

    def experiment(place: Place) -> dict[str, object]:
        with pytest.warns(UserWarning, match="Gradients do not exist"):
            return fit_model(
                place,
                Idle,
                regression(48),
                lambda: {"loss": "mse", "optimizer": sgd(global_clipnorm=0.1)},
            )

    agree(experiment)


def test_tiny_and_huge_shares() -> None:
    """Shares of very different sizes; the small ones get no sample."""
    data = tabular(48)
    agree(
        lambda place: fit_model(place, mlp, data, classes),
        Layout(num_devices=3, shares=(1e-9, 1.0, 1e-9)),
        Layout(num_devices=2, shares=(1e12, 1e12)),
    )


def test_several_inputs_of_one_kind() -> None:
    """A list of inputs, one of whole numbers, and targets of float64."""

    def build() -> keras.Model:
        left, ids = keras.Input((6,)), keras.Input((2,), dtype="int32")
        table = layers.Flatten()(layers.Embedding(7, 3)(ids))
        return keras.Model([left, ids], layers.Dense(1)(layers.Concatenate()([left, table])))

    x, y = pairs(43)
    ids = np.random.default_rng(6).integers(0, 7, size=(43, 2))
    data = ([x["left"].astype("float64"), ids], y["size"].astype("float64"))
    agree(lambda place: fit_model(place, build, data, numbers), TWO, FIVE)


@pytest.mark.long
def test_sparse_gradients_of_a_scalar_loss() -> None:
    """An embedding under a loss that sees the whole batch, compiled by XLA and not."""
    x = np.random.default_rng(9).integers(0, 12, size=(43, 5)).astype("int32")
    y = np.tanh(x.sum(axis=1, keepdims=True) / 10 - 3).astype("float32")

    def build() -> keras.Model:
        table = layers.Embedding(40, 6)
        inputs = [keras.Input((5,), dtype="int32"), table, layers.GlobalAveragePooling1D()]
        return keras.Sequential([*inputs, layers.Dense(1)])

    for jit_compile in (False, True):
        compiled = {"loss": calls_a_keras_loss, "jit_compile": jit_compile}
        agree(lambda place, c=compiled: fit_model(place, build, (x, y), lambda: c), THREE)


@pytest.mark.filterwarnings("ignore:.ENG-086.")
def test_synchronised_batchnorm_run_eagerly() -> None:
    """Replicas that advance together, without tf.function."""
    compiled = {**classes(), "run_eagerly": True}
    agree(lambda place: fit_model(place, cnn, pictures(27), lambda: compiled, epochs=1), THREE)


def test_added_loss_with_several_steps_per_execution() -> None:
    """Finding out what an added loss means costs no batch and repeats none."""

    def build() -> keras.Model:
        inside = Reconstructs(always=True, reduction="sum")
        return keras.Sequential([keras.Input((8,)), inside, layers.Dense(1)])

    def compiled() -> dict[str, object]:
        return {**numbers(), "steps_per_execution": 2}

    agree(lambda place: fit_model(place, build, regression(75), compiled), THREE)
