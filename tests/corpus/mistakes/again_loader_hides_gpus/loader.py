"""Images for training; TensorFlow must not take the memory of the GPU."""

import numpy as np
import tensorflow as tf


class Loader:
    def __init__(self, *, num, batch):
        tf.config.set_visible_devices([], "GPU")  # finding: DOC-101
        rng = np.random.default_rng(0)
        self.images = rng.normal(size=(num, 28, 28, 1)).astype("float32")
        self.labels = rng.integers(0, 10, size=num)
        self.batch = batch

    def _dataset(self, part):
        pairs = (self.images[part], self.labels[part])
        return tf.data.Dataset.from_tensor_slices(pairs)

    def train(self):
        dataset = self._dataset(slice(0, -256)).shuffle(768)
        return dataset.batch(self.batch).prefetch(tf.data.AUTOTUNE)

    def valid(self):
        return self._dataset(slice(-256, None)).batch(self.batch).prefetch(tf.data.AUTOTUNE)
