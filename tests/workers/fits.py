"""Program of one worker, or of one device: trains models by `fit`, and saves what they give.

Its argument is a JSON object: the names of the programs, the shares, the number of devices, the
number of this worker (None for one device) and the folder for the results. `TF_CONFIG` names the
workers.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

Trained = tuple[keras.Model, keras.callbacks.History, list[Any]]
"""Model, history of its training, and anything else that it gave."""
FITS: dict[str, Callable[[np.random.Generator], Trained]] = {}


def fit(program: Callable[[np.random.Generator], Trained]) -> Callable[..., Trained]:
    FITS[program.__name__] = program
    return program


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@fit
def images(rng: np.random.Generator) -> Trained:
    x, y = numbers(rng, 45, 12, 12, 3), rng.integers(0, 2, 45)
    stack = [
        layers.RandomFlip("horizontal", seed=3),
        layers.Conv2D(4, 3, 2, activation="relu"),
        layers.BatchNormalization(),
        layers.DepthwiseConv2D(3),
        layers.Flatten(),
        layers.Dense(1),
    ]
    model = keras.Sequential([keras.Input((12, 12, 3)), *stack])
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"])
    tested = x[:13], y[:13]
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, class_weight={0: 1.0, 1: 2.0})
    return model, history, [model.evaluate(*tested, verbose=0), model.predict(x, verbose=0)]


@fit
def images_in_a_pipeline(rng: np.random.Generator) -> Trained:
    files = [tf.io.encode_png(rng.integers(0, 256, (9, 9, 3), np.uint8)) for _ in range(29)]
    labels = rng.integers(0, 3, 29)

    def decode(file: Any, label: Any) -> Any:
        image = tf.image.resize(tf.io.decode_png(file, 3), (8, 8))
        return tf.ensure_shape(image, (8, 8, 3)), label

    data = tf.data.Dataset.from_tensor_slices((files, labels)).cache().shuffle(29, seed=5)
    data = data.map(decode, num_parallel_calls=2).batch(8)
    data = data.map(lambda x, y: (x / 255.0, tf.one_hot(y, 3))).prefetch(2)
    stack = [layers.Conv2D(4, 3), layers.GroupNormalization(2), layers.GlobalMaxPooling2D()]
    model = keras.Sequential([keras.Input((8, 8, 3)), *stack, layers.Dense(3, "softmax")])
    optimizer = keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, "categorical_crossentropy", metrics=["auc"], steps_per_execution=3)
    stopping = keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True)
    history = model.fit(data, epochs=3, verbose=0, callbacks=[stopping], validation_data=data)
    return model, history, [model.evaluate(data, verbose=0), model.predict(data, verbose=0)]


@fit
def words(rng: np.random.Generator) -> Trained:
    tokens, y = rng.integers(0, 20, (37, 6)), numbers(rng, 37, 1)
    stack = [layers.Embedding(20, 8, mask_zero=True), layers.Bidirectional(layers.LSTM(5))]
    model = keras.Sequential([keras.Input((6,), dtype="int32"), *stack, layers.Dense(1)])
    model.compile(keras.optimizers.RMSprop(0.01, clipnorm=0.5), "mse", weighted_metrics=["mae"])
    plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0)
    weights = rng.random(37)
    history = model.fit(
        tokens, y, 10, 3, verbose=0, sample_weight=weights, shuffle=True, callbacks=[plateau]
    )
    return model, history, [model.predict(tokens, verbose=0)]


@fit
def attention(rng: np.random.Generator) -> Trained:
    x, y = numbers(rng, 30, 5, 8), rng.integers(0, 4, 30)
    inputs = keras.Input((5, 8))
    found = layers.MultiHeadAttention(2, 4, dropout=0.2, seed=1)(inputs, inputs)
    found = layers.LayerNormalization()(layers.add([inputs, found]))
    found = layers.Dropout(0.3, seed=2)(layers.Dense(8, "gelu")(found))
    outputs = layers.Dense(4)(layers.GlobalAveragePooling1D()(found))
    model = keras.Model(inputs, outputs)
    schedule = keras.optimizers.schedules.CosineDecay(0.01, 20)
    optimizer = keras.optimizers.AdamW(
        schedule, global_clipnorm=0.3, gradient_accumulation_steps=2, weight_decay=0.01
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["sparse_top_k_categorical_accuracy"])
    history = model.fit(x, y, 8, 3, verbose=0, validation_split=0.2)
    return model, history, [model.predict(x, verbose=0)]


@fit
def two_outputs(rng: np.random.Generator) -> Trained:
    x, y = numbers(rng, 26, 6), {"a": numbers(rng, 26, 2), "b": rng.integers(0, 2, (26, 1))}
    inputs = keras.Input((6,))
    shared = layers.Dense(7, "tanh", kernel_regularizer="l2")(inputs)
    shared = layers.ActivityRegularization(0.01)(layers.BatchNormalization()(shared))
    outputs = {
        "a": layers.Dense(2, name="a")(shared),
        "b": layers.Dense(1, "sigmoid", name="b")(shared),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.Nadam(0.01),
        {"a": "huber", "b": "binary_crossentropy"},
        loss_weights={"a": 0.3, "b": 0.7},
        metrics={"a": "mae", "b": ["auc", "precision"]},
    )
    history = model.fit(x, y, 7, 2, verbose=0)
    return model, history, [model.evaluate(x, y, verbose=0), model.predict(x, verbose=0)]


class Generative(keras.Model):
    """Two models against each other, with optimizers of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = keras.Sequential([keras.Input((3,)), layers.Dense(6, "tanh"), layers.Dense(4)])
        hidden = [layers.Dense(6), layers.LeakyReLU(), layers.Dropout(0.2, seed=9)]
        self.judge = keras.Sequential([keras.Input((4,)), *hidden, layers.Dense(1)])
        self.seeds = keras.random.SeedGenerator(4)
        self.loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
        self.tracker = keras.metrics.Mean("judge_loss")

    def compile(self, makers: Any, judges: Any) -> None:
        super().compile()
        self.makers, self.judges = makers, judges
        self.built = True

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def call(self, x: Any) -> Any:
        return self.judge(x)

    def train_step(self, data: Any) -> Any:
        count = ops.shape(data)[0]
        noise = keras.random.normal((count, 3), seed=self.seeds)
        with tf.GradientTape(persistent=True) as tape:
            made = self.maker(noise)
            real, fake = self.judge(data, training=True), self.judge(made, training=True)
            judged = self.loss_of(ops.ones_like(real), real) + self.loss_of(
                ops.zeros_like(fake), fake
            )
            fooled = self.loss_of(ops.ones_like(fake), fake)
        for optimizer, loss, model in (
            (self.judges, judged, self.judge),
            (self.makers, fooled, self.maker),
        ):
            weights = model.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
        self.tracker.update_state(judged)
        return {"judge_loss": self.tracker.result(), "maker_loss": fooled}


@fit
def generative(rng: np.random.Generator) -> Trained:
    data = tf.data.Dataset.from_tensor_slices(numbers(rng, 27, 4)).map(lambda x: 2 * x).batch(8)
    model = Generative()
    model.compile(keras.optimizers.Adam(0.01, beta_1=0.5), keras.optimizers.SGD(0.01, 0.9))
    history = model.fit(data, epochs=2, verbose=0)
    return model, history, []


@fit
def half_precision(rng: np.random.Generator) -> Trained:
    x, y = numbers(rng, 24, 6), rng.integers(0, 3, 24)
    policy = keras.DTypePolicy("mixed_bfloat16")
    hidden = [layers.Dense(9, "relu", dtype=policy), layers.BatchNormalization(dtype=policy)]
    model = keras.Sequential([keras.Input((6,)), *hidden, layers.Dense(3, dtype="float32")])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.001), 64.0)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(x, y, 8, 2, verbose=0)
    return model, history, []


class Batches(keras.utils.PyDataset):
    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        super().__init__()
        self._x, self._y = x, y

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self._x[index::4], self._y[index::4]


@fit
def batches_of_python(rng: np.random.Generator) -> Trained:
    x, y = numbers(rng, 30, 6), numbers(rng, 30, 1)
    normalization = layers.Normalization()
    normalization.adapt(x)
    model = keras.Sequential([keras.Input((6,)), normalization, layers.Dense(4), layers.Dense(1)])
    model.compile(keras.optimizers.Lion(0.01), "mse", metrics=["r2_score"])
    history = model.fit(Batches(x, y), epochs=2, verbose=0, shuffle=False)
    return model, history, [model.predict(Batches(x, y), verbose=0)]


def by_optimizer(make: Callable[[], Any]) -> Callable[[np.random.Generator], Trained]:
    def train(rng: np.random.Generator) -> Trained:
        x, y = numbers(rng, 22, 5), numbers(rng, 22, 2)
        hidden = [layers.Dense(6, "tanh"), layers.BatchNormalization()]
        model = keras.Sequential([keras.Input((5,)), *hidden, layers.Dense(2)])
        model.compile(make(), "mse")
        return model, model.fit(x, y, 8, 2, verbose=0), []

    return train


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "amsgrad": lambda: keras.optimizers.Adam(0.01, amsgrad=True, gradient_accumulation_steps=2),
    "lamb": lambda: keras.optimizers.Lamb(0.01),
    "muon": lambda: keras.optimizers.Muon(0.01),
}
FITS |= {name: by_optimizer(make) for name, make in OPTIMIZERS.items()}


def arrays_of(trained: Trained) -> list[np.ndarray]:
    """Return the weights, the state of the optimizers, the history, and the rest."""
    model, history, rest = trained
    tracked = [variable.numpy() for variable in model.variables]
    optimizer = getattr(model, "optimizer", None)
    tracked += [] if optimizer is None else [v.numpy() for v in optimizer.variables]
    logs = [np.asarray(history.history[name], np.float64) for name in sorted(history.history)]
    return [*tracked, *logs, *map(np.asarray, tf.nest.flatten(rest))]


def main(options: dict[str, Any]) -> None:
    index, count = options["index"], options["devices"]
    cpus = [tf.config.LogicalDeviceConfiguration()] * count
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    strategy = tf.distribute.get_strategy()
    if index is not None:
        import evener

        devices = [f"cpu:{number}" for number in range(count)]
        strategy = evener.Strategy(devices=devices, shares=options["shares"], verify=False)
    for number, name in enumerate(options["names"]):
        keras.utils.set_random_seed(7)
        with strategy.scope():
            arrays = arrays_of(FITS[name](np.random.default_rng(3)))
        np.savez(Path(options["folder"]) / f"{index}_{number}.npz", *arrays)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
