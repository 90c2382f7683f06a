"""A Sequence with workers, callbacks of one's own, mixed sizes of the last batch."""

import math

import numpy as np
import tensorflow as tf


class Batches(tf.keras.utils.Sequence):
    def __init__(self, x, y, batch, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y, self.batch = x, y, batch
        self.order = np.arange(len(x))

    def __len__(self):
        return math.ceil(len(self.x) / self.batch)

    def __getitem__(self, i):
        part = self.order[i * self.batch : (i + 1) * self.batch]
        return self.x[part], self.y[part]

    def on_epoch_end(self):
        np.random.shuffle(self.order)


class BestWeights(tf.keras.callbacks.Callback):
    """Keeps the weights of the best epoch."""

    def on_train_begin(self, logs=None):
        self.best, self.kept = math.inf, None

    def on_epoch_end(self, epoch, logs=None):
        if logs["val_loss"] < self.best:
            self.best, self.kept = logs["val_loss"], self.model.get_weights()

    def on_train_end(self, logs=None):
        self.model.set_weights(self.kept)


rng = np.random.default_rng(0)
x = rng.normal(size=(1000, 24)).astype("float32")
y = np.argmax(x[:, :5], axis=1)
train = Batches(x[:800], y[:800], 64, workers=2)
valid = Batches(x[800:], y[800:], 64)
model = tf.keras.Sequential(
    [tf.keras.Input((24,)), tf.keras.layers.Dense(128, "relu"), tf.keras.layers.Dense(5)]
)
model.compile(
    optimizer=tf.keras.optimizers.Adam(1e-3),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
model.fit(train, validation_data=valid, epochs=3, callbacks=[BestWeights()])
