"""Models with steps of their own, in the styles of the Keras guides."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers

from .models import sequential


def stack() -> tuple[Any, Any]:
    x = keras.Input((8,))
    return x, layers.Dense(1)(layers.Dense(12, activation="tanh")(x))


class ComputeLoss(keras.Model):
    """The guide's first example: ``compute_loss`` and the compiled metrics."""

    def train_step(self, data: Any) -> Any:
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
        return [self.loss_tracker, self.mae_metric]


class VectorLoss(OwnTrackers):
    """An older guide: ``keras.losses.mean_squared_error`` gives one loss per sample."""

    def train_step(self, data: Any) -> Any:
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
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        y_pred = self(x, training=False)
        return {"value": y_pred, "positive": tf.cast(y_pred > 0, tf.int32)}


class Everything(OwnTest, ComputeLoss):
    """All three steps."""


class RawLoss(keras.Model):
    """A step that returns the loss itself, and other numbers of the batch."""

    def train_step(self, data: Any) -> Any:
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
        super().compile(optimizer=optimizer)
        self.loss_fn, self.factor = loss_fn, factor

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.factor * self.loss_fn(y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.tracker]


class KnownRows(keras.Model):
    """Divides by the number of rows as the data has it, which may be known while tracing."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        rows = x.shape[0]
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum(tf.square(y - self(x, training=True)), 1) * tf.ones([rows])
            loss = tf.reduce_sum(errors) / rows
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss, "last": tf.reduce_sum(errors * tf.one_hot(rows - 1, rows))}


class KnownRowsAtTheEnd(keras.Model):
    """Asks for the number of rows when the optimizer has made its variables."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.own = keras.optimizers.SGD(0.05, momentum=0.9)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            errors = tf.square(y - self(x, training=True))
            loss = tf.reduce_mean(errors)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.own.apply(gradients, self.trainable_variables)
        return {"loss": loss, "sum": loss * float(x.shape[0])}


class KnownRowsInAFunction(KnownRowsAtTheEnd):
    """The same in a traced function of the program."""

    @tf.function
    def train_step(self, data: Any) -> Any:
        return KnownRowsAtTheEnd.train_step(self, data)


class GAN(keras.Model):
    """The guide's GAN: two networks, two optimizers; noise from a seed of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.discriminator = sequential((8,), layers.Dense(8, activation="tanh"), layers.Dense(1))
        self.generator = sequential((3,), layers.Dense(8, activation="tanh"), layers.Dense(8))
        self.d_loss_tracker = keras.metrics.Mean(name="d_loss")
        self.g_loss_tracker = keras.metrics.Mean(name="g_loss")
        self.built = True

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.loss_fn = loss_fn

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.d_loss_tracker, self.g_loss_tracker]

    def train_step(self, data: Any) -> Any:
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


class Autoencoder(keras.Model):
    """A VAE without its noise: several trackers, a sum over pixels, a mean over samples."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([keras.Input((8,)), layers.Dense(4)])
        self.decoder = sequential((2,), layers.Dense(8, activation="tanh"), layers.Dense(8))
        self.total = keras.metrics.Mean(name="loss")
        self.reconstruction = keras.metrics.Mean(name="reconstruction")
        self.kl = keras.metrics.Mean(name="kl")
        self.built = True

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.total, self.reconstruction, self.kl]

    def train_step(self, data: Any) -> Any:
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


class Distiller(keras.Model):
    """A student learns from a teacher that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = keras.Sequential([keras.Input((8,)), layers.Dense(4)])
        self.student = sequential((8,), layers.Dense(6, activation="tanh"), layers.Dense(4))
        self.teacher.trainable = False
        self.built = True

    def call(self, x: Any) -> Any:
        return self.student(x)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = False,
    ) -> Any:
        teacher = tf.nn.softmax(self.teacher(x, training=False))
        student = super().compute_loss(x, y, y_pred, sample_weight)
        distance = keras.losses.KLDivergence()(teacher, tf.nn.softmax(y_pred))
        return 0.3 * student + 0.7 * distance

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        weights = self.student.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        logs = self.compute_metrics(x, y, y_pred)
        logs["loss"] = loss
        return logs


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
        hidden = self.hidden(x)
        self.add_loss(0.1 * tf.reduce_mean(tf.square(hidden)))
        return self.head(hidden)


class OverCase(keras.Model):
    """Wraps a model of the law in a model with its own step."""

    train_step = ComputeLoss.train_step

    def __init__(self, inner: keras.Model) -> None:
        super().__init__()
        self.inner = inner

    def call(self, x: Any, training: bool = False) -> Any:
        return self.inner(x, training=training)


class OneTape(keras.Model):
    """A step that calls ``super().train_step`` and adds to its logs."""

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        logs["rate"] = self.optimizer.learning_rate
        return logs


class Accumulating(keras.Model):
    """Gradients added up by hand over ``every`` steps, in variables of the model."""

    every = 2

    def build(self, shape: Any) -> None:
        self.hidden, self.head = layers.Dense(6, activation="tanh"), layers.Dense(1)
        self.hidden.build(shape)
        self.head.build((None, 6))
        self.sums = [
            tf.Variable(tf.zeros(v.shape), trainable=False) for v in self.trainable_variables
        ]
        self.count = tf.Variable(0, trainable=False)

    def call(self, x: Any) -> Any:
        return self.head(self.hidden(x))

    def train_step(self, data: Any) -> Any:
        x, y = data
        self.count.assign_add(1)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        for total, gradient in zip(
            self.sums, tape.gradient(loss, self.trainable_variables), strict=True
        ):
            total.assign_add(gradient / self.every)
        tf.cond(self.count % self.every == 0, self.apply_sums, lambda: None)
        return {"loss": loss}

    def apply_sums(self) -> None:
        self.optimizer.apply_gradients(zip(self.sums, self.trainable_variables, strict=True))
        for total in self.sums:
            total.assign(tf.zeros_like(total))
