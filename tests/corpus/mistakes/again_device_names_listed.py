"""Two towers of a retrieval model, each on the GPU that a list of devices gives."""

import keras
import numpy as np
import tensorflow as tf

NAMES = [gpu.name for gpu in tf.config.list_physical_devices("GPU")]  # may: RUN-008
PLACES = dict(zip(("query", "item"), NAMES))


class Tower(keras.layers.Layer):
    def __init__(self, place, dim=32, **kwargs):
        super().__init__(**kwargs)
        self.place = place
        self.net = keras.Sequential(
            [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(dim)]
        )

    def build(self, shape):
        self.net.build(shape)

    def call(self, x):
        with tf.device(self.place):  # finding: RUN-008  # may: DOC-301
            return tf.math.l2_normalize(self.net(x), axis=-1)


class Retrieval(keras.Model):
    def __init__(self):
        super().__init__()
        self.query = Tower(PLACES["query"])
        self.item = Tower(PLACES["item"])

    def call(self, pair):
        query, item = pair
        return tf.matmul(self.query(query), self.item(item), transpose_b=True)


model = Retrieval()
model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
left = np.random.normal(size=(512, 20)).astype("float32")
right = np.random.normal(size=(512, 20)).astype("float32")
labels = np.tile(np.arange(64), 8)
model.fit((left, right), labels, batch_size=64, shuffle=False)
