# machine: 4 GPUs
"""A tf.keras.utils.Sequence, callbacks of one's own, and one GPU of four at work."""

import math

import numpy as np
import tensorflow as tf


class Images(tf.keras.utils.Sequence):
    def __init__(self, num, batch, **kwargs):
        super().__init__(**kwargs)
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(num, 32, 32, 3)).astype("float32")
        self.y = rng.integers(0, 5, size=num)
        self.batch = batch

    def __len__(self):
        return math.ceil(len(self.x) / self.batch)

    def __getitem__(self, i):
        part = slice(i * self.batch, (i + 1) * self.batch)
        return self.x[part], self.y[part]


class Warmup(tf.keras.callbacks.Callback):
    def __init__(self, peak, epochs):
        super().__init__()
        self.peak, self.epochs = peak, epochs

    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = self.peak * min(1.0, (epoch + 1) / self.epochs)


def resnet(width=32, blocks=3):
    inputs = tf.keras.Input((32, 32, 3))
    x = tf.keras.layers.Conv2D(width, 3, padding="same")(inputs)
    for _ in range(blocks):
        h = tf.keras.layers.Activation("relu")(x)
        x = tf.keras.layers.Add()([x, tf.keras.layers.Conv2D(width, 3, padding="same")(h)])
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(5, activation="softmax")(x))


model = resnet()
model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])  # may: DOC-201
model.fit(Images(1024, 256, workers=2), epochs=3, callbacks=[Warmup(0.1, 2)])  # finding: DOC-201
