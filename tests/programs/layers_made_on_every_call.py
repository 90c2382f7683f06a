"""A subclassed model that makes its layers in `call`, so that each call has weights of its own.

MirroredStrategy on two devices stops in `fit`, as one device does: ValueError: tf.function only
supports singleton tf.Variables created on the first call. Eagerly it would train, each step with
new weights in the layers.
"""

import sys

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers

tf.keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(64, 8, 8, 1)).astype("float32")
y = (x.mean(axis=(1, 2, 3)) > 0).astype("int64")


class Net(tf.keras.Model):
    def __init__(self, n_classes):
        super().__init__()
        self.n_classes = n_classes
        self.flatten = layers.Flatten()
        self.out = layers.Dense(n_classes)

    def call(self, inputs):
        x = layers.Conv2D(4, 3, activation="relu")(inputs)
        x = layers.BatchNormalization()(x)
        x = self.flatten(x)
        return self.out(x)


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = Net(2)
    model.compile(
        optimizer="adam",
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

model.fit(x, y, batch_size=16, epochs=2, verbose=0)

np.savez(sys.argv[1], *model.get_weights())
print("weights:", len(model.get_weights()))
