"""Runs with TensorFlow 1 and 2: names that are gone are only used where they are there."""

import numpy as np
import tensorflow as tf

try:
    from tensorflow.contrib.distribute import MirroredStrategy
except ImportError:
    MirroredStrategy = tf.distribute.MirroredStrategy

if tf.__version__.startswith("1."):
    tf.enable_eager_execution()
    tf.logging.set_verbosity(tf.logging.ERROR)

random_normal = tf.random.normal if hasattr(tf.random, "normal") else tf.random_normal


class Meter:
    """Has a method of its own that Keras's metrics no longer have."""

    def __init__(self):
        self.values = []

    def reset_states(self):
        self.values.clear()


strategy = MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
x = np.asarray(random_normal([256, 8]))
model.fit(x, x[:, :1], batch_size=64, epochs=1)
meter = Meter()
meter.reset_states()
