"""The law for models with a ``train_step``, ``test_step`` or ``predict_step`` of their own.

In the styles of the Keras guides, under `fit`, `evaluate` and `predict`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener.errors import EngineError

from .candidates import Place, make_candidate
from .compare import state_of
from .harness import (
    CHANGES,
    FIVE,
    THREE,
    TWO,
    ChangeShares,
    Layout,
    agree,
    sgd,
    unequal_weights,
)
from .models import BY_NAME, classes, regression, tabular
from .optimizers import OPTIMIZERS
from .test_loop_losses import saying

Build = Callable[[], keras.Model]


def stack() -> tuple[Any, Any]:
    """Return input and output of a small functional regressor."""
    x = keras.Input((8,))
    return x, layers.Dense(1)(layers.Dense(12, activation="tanh")(x))


class ComputeLoss(keras.Model):
    """The guide's first example: ``compute_loss`` and the compiled metrics."""

    def train_step(self, data: Any) -> Any:
        """Take a step with the compiled loss."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {m.name: m.result() for m in self.metrics}


class ComputeMetrics(keras.Model):
    """The same with ``compute_metrics``, as Keras's own step, and a scaled loss."""

    def train_step(self, data: Any) -> Any:
        """Take a step as Keras does."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self._compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True
            )
            self._loss_tracker.update_state(loss, sample_weight=tf.shape(x)[0])
            loss = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


class OwnTrackers(keras.Model):
    """The guide's "lower level": trackers of its own and the property ``metrics``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")
        self.loss_fn = keras.losses.MeanSquaredError()

    def train_step(self, data: Any) -> Any:
        """Take a step with a loss object of its own."""
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_fn(y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

    @property
    def metrics(self) -> list[keras.Metric]:
        """Keras resets these before every epoch."""
        return [self.loss_tracker, self.mae_metric]


class VectorLoss(OwnTrackers):
    """An older guide: ``keras.losses.mean_squared_error`` gives one loss per sample."""

    def train_step(self, data: Any) -> Any:
        """Take the gradient of a vector: the sum of the samples' losses."""
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = keras.losses.mean_squared_error(y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}


class MeanOfVector(OwnTrackers):
    """The same, averaged by TensorFlow: a mean that is not scaled."""

    def train_step(self, data: Any) -> Any:
        """Take the gradient of the mean of the samples' losses."""
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = tf.reduce_mean(keras.losses.mean_squared_error(y, y_pred))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


class Weighted(OwnTrackers):
    """The guide's support of ``sample_weight``, with a loss of its own."""

    def train_step(self, data: Any) -> Any:
        """Weigh samples if there are weights."""
        if len(data) == 3:
            x, y, sample_weight = data
        else:
            sample_weight = None
            x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_fn(y, y_pred, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {m.name: m.result() for m in self.metrics}


class OwnTest(keras.Model):
    """The guide's own ``test_step``, and a ``predict_step``."""

    def test_step(self, data: Any) -> Any:
        """Update the metrics."""
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        y_pred = self(x, training=False)
        loss = self.compute_loss(y=y, y_pred=y_pred)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}

    def predict_step(self, data: Any) -> Any:
        """Return predictions in two forms."""
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        y_pred = self(x, training=False)
        return {"value": y_pred, "positive": tf.cast(y_pred > 0, tf.int32)}


class Everything(OwnTest, ComputeLoss):
    """All three steps."""


class RawLoss(keras.Model):
    """A step that returns the loss itself, and other numbers of the batch."""

    def train_step(self, data: Any) -> Any:
        """Return what no metric has tracked."""
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {
            "loss": loss,
            "mean_error": tf.reduce_mean(tf.abs(y - y_pred)),
            "total_error": tf.reduce_sum(tf.abs(y - y_pred)),
            "more": {"bias": tf.reduce_mean(y - y_pred), "double": 2.0 * loss},
        }


class OwnCompile(keras.Model):
    """A model whose ``compile`` takes its own arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tracker = keras.metrics.Mean(name="loss")

    def compile(self, optimizer: Any, loss_fn: Any, factor: float = 1.0) -> None:
        """Keep the loss and its factor."""
        super().compile(optimizer=optimizer)
        self.loss_fn, self.factor = loss_fn, factor

    def train_step(self, data: Any) -> Any:
        """Take a step."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.factor * self.loss_fn(y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    @property
    def metrics(self) -> list[keras.Metric]:
        """The tracker."""
        return [self.tracker]


def functional(kind: type[keras.Model]) -> Build:
    """Return what builds a functional model of a class."""
    return lambda: kind(*stack())


COMPILED: dict[str, Any] = {"loss": "mse", "metrics": ["mae"]}


def fit_own(
    place: Place,
    kind: type[keras.Model],
    *,
    compiled: dict[str, Any] | None = None,
    rate: float = 0.05,
    samples: int = 75,
    layout: Layout | None = None,
    **fit: Any,
) -> dict[str, object]:
    """Fit a functional regressor of a class, with partial batches."""
    x, y = regression(samples)
    with place.scope():
        model = functional(kind)()
        model.compile(optimizer=sgd(learning_rate=rate), **(compiled or {}))
    return fit_again(place, model, x, y, layout=layout, **fit)


def fit_again(
    place: Place,
    model: keras.Model,
    x: Any,
    y: Any,
    *,
    layout: Layout | None = None,
    **fit: Any,
) -> dict[str, object]:
    """Fit a compiled model."""
    settings = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0, **fit}
    if layout is not None:
        settings["callbacks"] = [ChangeShares(place, layout)]
    history = model.fit(x, y, **settings)
    optimizer = {f"{k} {v.name}": v.numpy() for k, v in enumerate(model.optimizer.variables)}
    return {**state_of(model), "history": flat(history.history), "optimizer": optimizer}


def flat(history: dict[str, list[Any]]) -> dict[str, Any]:
    """Return a history with the logs of nested names apart."""
    return {
        name: tf.nest.map_structure(lambda *steps: np.asarray(steps), *values)
        for name, values in history.items()
    }


STYLES: dict[str, tuple[type[keras.Model], dict[str, Any]]] = {
    "compute_loss": (ComputeLoss, COMPILED),
    "compute_metrics": (ComputeMetrics, COMPILED),
    "own trackers": (OwnTrackers, {}),
    "weighted": (Weighted, {}),
    "own test": (OwnTest, COMPILED),
    "everything": (Everything, COMPILED),
    "raw loss": (RawLoss, {"loss": "mse"}),
    "own compile": (OwnCompile, {"loss_fn": keras.losses.MeanSquaredError(), "factor": 0.5}),
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("layout", [TWO, FIVE], ids=str)
def test_fit(style: str, layout: Layout) -> None:
    """Weights, optimizer state and logs of every style."""
    kind, compiled = STYLES[style]
    agree(lambda place: fit_own(place, kind, compiled=compiled), layout)


@pytest.mark.parametrize("style", STYLES)
def test_shares_change(style: str) -> None:
    """Shares change before every batch."""
    kind, compiled = STYLES[style]
    layout = Layout(num_devices=3, by_batch=CHANGES[3])
    agree(lambda place: fit_own(place, kind, compiled=compiled, layout=layout), layout)


def test_sum_of_samples() -> None:
    """The gradient of a vector of losses is the sum over the samples, on any devices."""
    agree(lambda place: fit_own(place, VectorLoss, rate=0.002), TWO, FIVE)


def test_mean_that_is_not_scaled() -> None:
    """A mean over a replica's samples is put right, and that is said."""

    with saying("ENG-066"):
        agree(lambda place: fit_own(place, MeanOfVector), THREE)


@pytest.mark.parametrize("kind", [ComputeLoss, ComputeMetrics, Weighted])
@pytest.mark.parametrize("loss", ["sum_over_batch_size", "mean_with_sample_weight"])
def test_sample_weights(kind: type[keras.Model], loss: str) -> None:
    """Weights that differ between shares, some zero."""
    weights = unequal_weights(75)
    compiled = {"loss": keras.losses.MeanSquaredError(reduction=loss), "weighted_metrics": ["mae"]}
    given = {} if kind is Weighted else compiled
    agree(
        lambda place: fit_own(place, kind, compiled=given, sample_weight=weights),
        THREE,
    )


@pytest.mark.parametrize("how", ["steps_per_execution", "run_eagerly"])
@pytest.mark.parametrize("style", ["compute_loss", "own trackers", "everything", "raw loss"])
def test_several_steps_at_once_and_eagerly(style: str, how: str) -> None:
    """Three steps per execution, the last one shorter; and operation by operation."""
    kind, compiled = STYLES[style]
    value: Any = 3 if how == "steps_per_execution" else True

    def experiment(place: Place) -> dict[str, object]:
        return fit_own(place, kind, compiled={**compiled, how: value})

    if how == "run_eagerly":
        with saying("ENG-061"):
            agree(experiment, THREE)
    else:
        agree(experiment, THREE)


@pytest.mark.parametrize("style", ["compute_loss", "own trackers", "own test", "everything"])
def test_validation_data(style: str) -> None:
    """A validation after every epoch, with partial batches of its own."""
    kind, compiled = STYLES[style]
    x, y = regression(43)
    agree(
        lambda place: fit_own(
            place,
            kind,
            compiled={**compiled, "loss": "mse"},
            validation_data=(x, y),
            validation_batch_size=20,
        ),
        TWO,
    )


@pytest.mark.parametrize("kind", [OwnTest, Everything])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("layout", [TWO, FIVE], ids=str)
def test_evaluate_and_predict(kind: type[keras.Model], steps: int, layout: Layout) -> None:
    """Steps of the model's own for evaluation and prediction."""
    x, y = regression(75)

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = functional(kind)()
            model.compile(optimizer=sgd(), steps_per_execution=steps, **COMPILED)
        return {
            "evaluate": model.evaluate(x, y, batch_size=20, verbose=0, return_dict=True),
            "predict": model.predict(x[:43], batch_size=20, verbose=0),
            "tiny": model.predict(x[:3], batch_size=2, verbose=0),
            "on_batch": model.predict_on_batch(x[:7]),
            "test_on_batch": model.test_on_batch(x[:7], y[:7], return_dict=True),
        }

    agree(experiment, layout)


@pytest.mark.parametrize("style", ["compute_loss", "raw loss"])
def test_train_on_batch(style: str) -> None:
    """``train_on_batch`` with batches of several sizes, one smaller than the replicas."""
    x, y = regression(75)

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = functional(STYLES[style][0])()
            model.compile(optimizer=sgd(), **STYLES[style][1])
        logs = [
            model.train_on_batch(x[a:b], y[a:b], return_dict=True)
            for a, b in ((0, 16), (16, 30), (30, 32), (32, 33))
        ]
        return {**state_of(model), "logs": flat({k: [g[k] for g in logs] for k in logs[0]})}

    agree(experiment, TWO, FIVE)


class Recorder(keras.callbacks.Callback):
    """Records what callbacks are told."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[float] = []
        self.epochs: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Record the loss."""
        self.batches.append(float(logs["loss"]))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Record the loss."""
        self.epochs.append(float(logs["loss"]))


@pytest.mark.parametrize("style", ["compute_loss", "own trackers", "raw loss"])
def test_callbacks(style: str) -> None:
    """Logs of every batch, a schedule of learning rates, and stopping early."""
    kind, compiled = STYLES[style]

    def experiment(place: Place) -> dict[str, object]:
        recorder = Recorder()
        callbacks = [
            recorder,
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
            keras.callbacks.EarlyStopping(monitor="loss", min_delta=10.0, patience=1),
        ]
        results = fit_own(place, kind, compiled=compiled, callbacks=callbacks, epochs=4)
        return {**results, "batches": recorder.batches, "epochs": recorder.epochs}

    agree(experiment, THREE)


class GAN(keras.Model):
    """The guide's GAN: two networks, two optimizers; noise from a seed of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.discriminator = keras.Sequential(
            [keras.Input((8,)), layers.Dense(8, activation="tanh"), layers.Dense(1)]
        )
        self.generator = keras.Sequential(
            [keras.Input((3,)), layers.Dense(8, activation="tanh"), layers.Dense(8)]
        )
        self.d_loss_tracker = keras.metrics.Mean(name="d_loss")
        self.g_loss_tracker = keras.metrics.Mean(name="g_loss")
        self.built = True

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        """Keep two optimizers."""
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.loss_fn = loss_fn

    @property
    def metrics(self) -> list[keras.Metric]:
        """The trackers."""
        return [self.d_loss_tracker, self.g_loss_tracker]

    def train_step(self, data: Any) -> Any:
        """Train the one, then the other."""
        real, noise = data
        size = tf.shape(real)[0]
        images = tf.concat([self.generator(noise), real], axis=0)
        labels = tf.concat([tf.ones((size, 1)), tf.zeros((size, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(images))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        with tf.GradientTape() as tape:
            made = self.discriminator(self.generator(noise))
            g_loss = self.loss_fn(tf.zeros((size, 1)), made)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {"d_loss": self.d_loss_tracker.result(), "g_loss": self.g_loss_tracker.result()}


def test_gan() -> None:
    """Two optimizers; the second update sees what the first has written."""
    real = regression(75)[0]
    noise = np.random.default_rng(9).normal(size=(75, 3)).astype("float32")

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = GAN()
            model.compile(
                d_optimizer=OPTIMIZERS["adam"](),
                g_optimizer=OPTIMIZERS["adam"](),
                loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
            )
        history = model.fit(real, noise, batch_size=16, epochs=2, shuffle=False, verbose=0)
        return {**state_of(model), "history": history.history}

    agree(experiment, TWO, FIVE)


class Autoencoder(keras.Model):
    """A VAE without its noise: several trackers, a sum over pixels, a mean over samples."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([keras.Input((8,)), layers.Dense(4)])
        self.decoder = keras.Sequential(
            [keras.Input((2,)), layers.Dense(8, activation="tanh"), layers.Dense(8)]
        )
        self.total = keras.metrics.Mean(name="loss")
        self.reconstruction = keras.metrics.Mean(name="reconstruction")
        self.kl = keras.metrics.Mean(name="kl")
        self.built = True

    @property
    def metrics(self) -> list[keras.Metric]:
        """The trackers."""
        return [self.total, self.reconstruction, self.kl]

    def train_step(self, data: Any) -> Any:
        """The guide's step."""
        data = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            mean, log_variance = tf.split(self.encoder(data), 2, axis=-1)
            decoded = self.decoder(mean)
            reconstruction = tf.reduce_mean(tf.reduce_sum(tf.square(data - decoded), axis=-1))
            kl = -0.5 * (1 + log_variance - tf.square(mean) - tf.exp(log_variance))
            kl = tf.reduce_mean(tf.reduce_sum(kl, axis=1))
            total = reconstruction + kl
        gradients = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.total.update_state(total)
        self.reconstruction.update_state(reconstruction)
        self.kl.update_state(kl)
        return {m.name: m.result() for m in self.metrics}


def test_autoencoder() -> None:
    """Means over samples that a person wrote are put right, and that is said."""

    x = regression(75)[0]

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = Autoencoder()
            model.compile(optimizer=OPTIMIZERS["adam"]())
        history = model.fit(x, batch_size=16, epochs=2, shuffle=False, verbose=0)
        return {**state_of(model), "history": history.history}

    with saying("ENG-066"):
        agree(experiment, THREE)


class Distiller(keras.Model):
    """A student learns from a teacher that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = keras.Sequential([keras.Input((8,)), layers.Dense(4)])
        self.student = keras.Sequential(
            [keras.Input((8,)), layers.Dense(6, activation="tanh"), layers.Dense(4)]
        )
        self.teacher.trainable = False
        self.built = True

    def call(self, x: Any) -> Any:
        """The student's outputs."""
        return self.student(x)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = False,
    ) -> Any:
        """Two losses of Keras."""
        teacher = tf.nn.softmax(self.teacher(x, training=False))
        student = super().compute_loss(x, y, y_pred, sample_weight)
        distance = keras.losses.KLDivergence()(teacher, tf.nn.softmax(y_pred))
        return 0.3 * student + 0.7 * distance

    def train_step(self, data: Any) -> Any:
        """Train the student alone."""
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        weights = self.student.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        logs = self.compute_metrics(x, y, y_pred)
        logs["loss"] = loss
        return logs


def test_distiller() -> None:
    """``compute_loss`` of one's own inside a ``train_step`` of one's own."""

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = Distiller()
            model.compile(optimizer=sgd(), **classes())
        return fit_again(place, model, *tabular(75))

    agree(experiment, THREE)


class WithPenalties(keras.Model):
    """Weight penalties and an added loss come in through ``compute_loss``."""

    # Not inherited: Keras makes a class functional, with all below it, at its first model.
    train_step = ComputeLoss.train_step

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(
            12, activation="tanh", kernel_regularizer="l2", activity_regularizer="l2"
        )
        self.head = layers.Dense(1, kernel_regularizer="l1")

    def call(self, x: Any) -> Any:
        """Add a mean over samples."""
        hidden = self.hidden(x)
        self.add_loss(0.1 * tf.reduce_mean(tf.square(hidden)))
        return self.head(hidden)


def test_penalties_and_added_losses() -> None:
    """What ``compute_loss`` adds to the compiled loss."""

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = WithPenalties()
            model(np.zeros((1, 8), "float32"))
            model.compile(optimizer=sgd(), **COMPILED)
        return fit_again(place, model, *regression(75))

    agree(experiment, TWO, FIVE)


class OverCase(keras.Model):
    """Wraps a model of the law in a model with its own step."""

    train_step = ComputeLoss.train_step

    def __init__(self, inner: keras.Model) -> None:
        super().__init__()
        self.inner = inner

    def call(self, x: Any, training: bool = False) -> Any:
        """Call the model."""
        return self.inner(x, training=training)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["cnn", "lstm", "transformer"])
def test_models(name: str, optimizer: str) -> None:
    """Convolutions with synchronized BatchNormalization, recurrence, masks and embeddings."""
    case = BY_NAME[name]
    layouts = {"cnn": THREE, "lstm": FIVE, "transformer": TWO}

    def experiment(place: Place) -> dict[str, object]:
        x, y = case.data(75)
        compiled = {**case.compiled(), "metrics": ["accuracy" if name != "lstm" else "mae"]}
        with place.scope():
            model = OverCase(case.build())
            model.compile(optimizer=OPTIMIZERS[optimizer](), **compiled)
        return fit_again(place, model, x, y)

    agree(experiment, layouts[name])


class OneTape(keras.Model):
    """A step that calls ``super().train_step`` and adds to its logs."""

    def train_step(self, data: Any) -> Any:
        """Do what Keras does, and log the learning rate."""
        logs = super().train_step(data)
        logs["rate"] = self.optimizer.learning_rate
        return logs


def test_super() -> None:
    """Keras's own step, called by a person's."""
    agree(lambda place: fit_own(place, OneTape, compiled=COMPILED), TWO)


class Accumulating(keras.Model):
    """Gradients added up by hand over ``every`` steps, in variables of the model."""

    every = 2

    def build(self, shape: Any) -> None:
        """Make one sum per weight, and a counter."""
        self.hidden, self.head = layers.Dense(6, activation="tanh"), layers.Dense(1)
        self.hidden.build(shape)
        self.head.build((None, 6))
        self.sums = [
            tf.Variable(tf.zeros(v.shape), trainable=False) for v in self.trainable_variables
        ]
        self.count = tf.Variable(0, trainable=False)

    def call(self, x: Any) -> Any:
        """Two layers."""
        return self.head(self.hidden(x))

    def train_step(self, data: Any) -> Any:
        """Add up, and apply every second time."""
        x, y = data
        self.count.assign_add(1)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        for one, gradient in zip(
            self.sums, tape.gradient(loss, self.trainable_variables), strict=True
        ):
            one.assign_add(gradient / self.every)
        tf.cond(self.count % self.every == 0, self.apply_sums, lambda: None)
        return {"loss": loss}

    def apply_sums(self) -> None:
        """Apply what was added up, and begin again."""
        self.optimizer.apply_gradients(zip(self.sums, self.trainable_variables, strict=True))
        for one in self.sums:
            one.assign(tf.zeros_like(one))


def test_an_optimizer_in_a_condition_is_refused() -> None:
    """Replicas cannot wait for each other inside a graph of their own; the message helps."""
    x, y = regression(64)
    place = make_candidate(2, "even")
    with place.scope():
        model = Accumulating()
        model.build((None, 8))
        model.compile(optimizer=sgd(), loss="mse")
        model.optimizer.build(model.trainable_variables)
    with pytest.raises(EngineError, match=r"(?s)ENG-067.*gradient_accumulation_steps") as caught:
        fit_again(place, model, x, y)
    assert caught.value.code == "ENG-067"


def test_one_step_traced_once_for_all_shares() -> None:
    """Changing shares does not trace a model's own step again."""
    x, y = regression(80)
    traces = []

    class Counting(ComputeLoss):
        def train_step(self, data: Any) -> Any:
            traces.append(1)
            return super().train_step(data)

    layout = Layout(num_devices=3, by_batch=CHANGES[3])
    place = make_candidate(3, "even")
    with place.scope():
        model = functional(Counting)()
        model.compile(optimizer=sgd(), **COMPILED)
    fit_again(place, model, x, y, layout=layout, epochs=4)
    assert len(traces) <= 2 * 3, "one or two traces, each with three replicas"
