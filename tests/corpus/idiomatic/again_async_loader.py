"""Threads read ahead into a queue; tf.data takes it from there."""

import concurrent.futures as futures

import keras
import numpy as np
import tensorflow as tf


def read(index):
    """Stands for a slow read."""
    rng = np.random.default_rng(index)
    x = rng.normal(size=(64, 32)).astype("float32")
    return x, x[:, :1] ** 2


class Prefetched:
    def __init__(self, num, workers=4):
        self.num, self.workers = num, workers

    def __call__(self):
        with futures.ThreadPoolExecutor(self.workers) as pool:
            yield from pool.map(read, range(self.num))

    def dataset(self):
        spec = (tf.TensorSpec((64, 32), tf.float32), tf.TensorSpec((64, 1), tf.float32))
        data = tf.data.Dataset.from_generator(self, output_signature=spec)
        return data.apply(tf.data.experimental.assert_cardinality(self.num)).prefetch(
            tf.data.AUTOTUNE
        )


model = keras.Sequential(
    [keras.Input((32,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(1)]
)
model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse")
model.fit(Prefetched(50).dataset(), epochs=2)
