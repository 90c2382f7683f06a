"""The law in corners: models, layers and uses of Keras that a split could quietly get wrong."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from .candidates import Place
from .compare import state_of
from .harness import (
    CHANGES,
    FIVE,
    THREE,
    TWO,
    ChangeShares,
    Layout,
    agree,
    agree_in_fit,
    compile_model,
    fit_again,
    fit_model,
    sgd,
)
from .models import (
    classes,
    cnn,
    mlp,
    numbers,
    pairs,
    pictures,
    regression,
    regressor,
    sequential,
    tabular,
)
from .tolerances import tolerance


def test_fit_inside_the_scope() -> None:
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
    agree_in_fit(regressor, data, lambda: {"loss": calls_a_keras_loss})


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
    def build() -> keras.Model:
        inside = Reconstructs(always=True, reduction=reduction)
        return keras.Sequential([keras.Input((8,)), inside, layers.Dense(1)])

    agree_in_fit(build, regression(75), numbers, THREE)


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
    words = np.array(["wagon", "horse", "ox", "bar"])
    drawn = words[np.random.default_rng(3).integers(0, 4, size=(48, 3))]
    y = (drawn == "ox").sum(axis=1, keepdims=True).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((drawn, y)).batch(11)

    def build() -> keras.Model:
        lookup = layers.StringLookup(vocabulary=list(words[:3]))
        table = layers.Embedding(5, 4)
        return sequential((3,), lookup, table, layers.Flatten(), layers.Dense(1), dtype="string")

    agree_in_fit(build, (data,), {"loss": "mse"}, THREE)


@pytest.mark.long
def test_masked_recurrence() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(43, 7, 3)).astype("float32")
    x[np.arange(7)[None, :] >= rng.integers(1, 8, size=43)[:, None]] = 0.0
    y = np.tanh(np.cumsum(x[:, :, :1], axis=1)).astype("float32")

    def build() -> keras.Model:
        return sequential(
            (7, 3), layers.Masking(0.0), layers.GRU(6, return_sequences=True), layers.Dense(1)
        )

    agree_in_fit(build, (x, y), numbers, FIVE)


@pytest.mark.long
@pytest.mark.parametrize("feature", ["xla", "mixed_float16"])
def test_synchronised_batchnorm_with(feature: str) -> None:
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
    agree_in_fit(OwnMetrics, regression(75), numbers, THREE)


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
    data = tabular(48)
    agree_in_fit(
        mlp,
        data,
        classes,
        Layout(num_devices=3, shares=(1e-9, 1.0, 1e-9)),
        Layout(num_devices=2, shares=(1e12, 1e12)),
    )


def test_several_inputs_of_one_kind() -> None:
    def build() -> keras.Model:
        left, ids = keras.Input((6,)), keras.Input((2,), dtype="int32")
        table = layers.Flatten()(layers.Embedding(7, 3)(ids))
        return keras.Model([left, ids], layers.Dense(1)(layers.Concatenate()([left, table])))

    x, y = pairs(43)
    ids = np.random.default_rng(6).integers(0, 7, size=(43, 2))
    data = ([x["left"].astype("float64"), ids], y["size"].astype("float64"))
    agree_in_fit(build, data, numbers, TWO, FIVE)


@pytest.mark.long
def test_sparse_gradients_of_a_scalar_loss() -> None:
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
    compiled = {**classes(), "run_eagerly": True}
    agree_in_fit(cnn, pictures(27), compiled, THREE, epochs=1)


def test_added_loss_with_several_steps_per_execution() -> None:
    """Finding out what an added loss means costs no batch and repeats none."""

    def build() -> keras.Model:
        inside = Reconstructs(always=True, reduction="sum")
        return keras.Sequential([keras.Input((8,)), inside, layers.Dense(1)])

    def compiled() -> dict[str, object]:
        return {**numbers(), "steps_per_execution": 2}

    agree_in_fit(build, regression(75), compiled, THREE)


@pytest.mark.long
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_compiled_by_xla(name: str) -> None:
    build, data = {"mlp": (mlp, tabular(48)), "cnn": (plain_cnn, pictures(48))}[name]

    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, build, lambda: {**classes(), "jit_compile": True})
        changes = ChangeShares(place, Layout(num_devices=2, by_epoch=CHANGES[2]))
        return fit_again(place, model, data, epochs=3, callbacks=[changes])

    agree(experiment, within=tolerance("xla"))


def plain_cnn() -> keras.Model:
    return sequential(
        (8, 8, 1),
        layers.Conv2D(4, 3, activation="silu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(4),
    )


class Nested(keras.Model):
    """Takes a tuple of an array and a dict; is built by its first batch; is two deep."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.Sequential([layers.Dense(8, activation="tanh"), layers.Dense(6)])
        self.second = layers.Dense(6, activation="gelu")
        self.head = layers.Dense(1)

    def call(self, inputs: tuple[object, dict[str, object]], training: bool = False) -> object:
        left, rest = inputs
        joint = self.first(left) + self.second(ops.concatenate([rest["a"], rest["b"]], axis=-1))
        return self.head(ops.tanh(joint))


def test_nested_inputs_built_by_the_first_batch() -> None:
    arrays, targets = pairs(75)
    x = (arrays["left"], {"a": arrays["right"][:, :2], "b": arrays["right"][:, 2:]})
    agree_in_fit(Nested, (x, targets["size"]), numbers, THREE)


def test_sequential_built_by_the_first_batch() -> None:
    def build() -> keras.Model:
        return keras.Sequential([layers.Dense(8, activation="tanh"), layers.Dense(1)])

    agree_in_fit(build, regression(11), {"loss": "mse"}, FIVE)


@pytest.mark.parametrize("clip", [None, 0.05], ids=["plain", "global_clipnorm"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_embeddings(optimizer: str, clip: float | None) -> None:
    """Sparse gradients: the same id in several shares, and several times in one sample."""
    rng = np.random.default_rng(9)
    x = rng.integers(0, 12, size=(75, 5)).astype("int32")
    x[:, 0] = 3
    y = np.tanh(x.sum(axis=1, keepdims=True) / 10 - 3).astype("float32")

    def build() -> keras.Model:
        return sequential(
            (5,),
            layers.Embedding(40, 6),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
            dtype="int32",
        )

    def compiled() -> dict[str, object]:
        kinds = {
            "sgd": lambda: sgd(global_clipnorm=clip),
            "adam": lambda: keras.optimizers.Adam(0.01, epsilon=1e-3, global_clipnorm=clip),
        }
        return {"loss": "mse", "optimizer": kinds[optimizer]()}

    agree_in_fit(build, (x, y), compiled, THREE)


def test_shared_layers() -> None:
    def build() -> keras.Model:
        left, right = keras.Input((6,), name="left"), keras.Input((4,), name="right")
        shared = keras.Sequential([layers.Dense(5, activation="tanh"), layers.Dense(3)])
        widened = layers.Dense(6)(right)
        return keras.Model(
            {"left": left, "right": right},
            layers.Dense(1)(layers.Add()([shared(left), shared(widened)])),
        )

    x, y = pairs(75)
    agree_in_fit(build, (x, y["size"]), numbers)


def test_normalisations_of_a_sample() -> None:
    def build() -> keras.Model:
        return sequential(
            (8, 8, 1),
            layers.Conv2D(4, 3, use_bias=False),
            layers.GroupNormalization(2),
            layers.Activation("silu"),
            layers.DepthwiseConv2D(3),
            layers.LayerNormalization(),
            layers.Flatten(),
            layers.Dense(4),
            layers.RMSNormalization(),
        )

    agree_in_fit(build, pictures(48), classes)


class Counts(layers.Layer):
    def build(self, shape: object) -> None:
        self.steps = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)
        self.half = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: object, training: bool = False) -> object:
        if training:
            self.steps.assign(self.steps + 1)
            self.half.assign(self.half + 0.5)
        return x


def test_state_that_counts_steps() -> None:
    """State that does not depend on the samples goes on by one step, not by one replica."""

    def build() -> keras.Model:
        return keras.Sequential([keras.Input((8,)), Counts(), layers.Dense(1)])

    agree_in_fit(build, regression(75), {"loss": "mse"}, FIVE)


def test_changing_shares_does_not_retrace() -> None:
    """After every size of batch was seen, new shares run what is already traced."""
    counted = {"calls": 0}

    class Traced(layers.Layer):
        def call(self, x: object) -> object:
            counted["calls"] += 1
            return x

    def build() -> keras.Model:
        return keras.Sequential([keras.Input((8,)), Traced(), layers.Dense(1)])

    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, build, lambda: {"loss": "mse"})
        x, y = regression(75)
        results = {"first": fit_again(place, model, (x, y))}
        before = counted["calls"]
        changes = ChangeShares(place, Layout(num_devices=3, by_batch=CHANGES[3]))
        results["second"] = fit_again(place, model, (x, y), callbacks=[changes])
        assert counted["calls"] == before, "new shares made Python call the layers again"
        return results

    agree(experiment, THREE)


@pytest.mark.filterwarnings("ignore:.ENG-086.")
def test_run_eagerly() -> None:
    compiled = {**classes(), "run_eagerly": True}
    agree_in_fit(mlp, tabular(27), compiled, TWO, epochs=1)


@pytest.mark.long
def test_synchronised_batchnorm_with_momentum_and_partial_batches() -> None:
    agree_in_fit(cnn, pictures(43), classes, FIVE)
