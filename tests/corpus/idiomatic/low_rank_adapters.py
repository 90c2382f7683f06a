# machine: 1 GPU
"""LoRA by hand: the big matrix is frozen, two small ones train."""

import keras
import numpy as np
from keras import layers


class Adapted(layers.Layer):
    def __init__(self, dense, rank=4, alpha=8.0, **kwargs):
        super().__init__(**kwargs)
        self.dense = dense
        self.dense.trainable = False
        self.rank = rank
        self.scale = alpha / rank

    def build(self, input_shape):
        width = input_shape[-1]
        if not self.dense.built:
            self.dense.build(input_shape)
        self.a = self.add_weight(shape=(width, self.rank), initializer="he_uniform", name="a")
        self.b = self.add_weight(shape=(self.rank, self.dense.units), initializer="zeros", name="b")

    def call(self, x):
        return self.dense(x) + self.scale * (x @ self.a) @ self.b


inputs = keras.Input((24,))
x = Adapted(layers.Dense(48))(inputs)
x = layers.Activation("gelu")(x)
outputs = Adapted(layers.Dense(4))(x)
model = keras.Model(inputs, outputs)
model.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
features = np.random.default_rng(0).normal(size=(512, 24)).astype("float32")
model.fit(features, np.argmax(features[:, :4], axis=1), batch_size=64, epochs=2)
model.save_weights("adapters.weights.h5")
