"""A model with its own `train_step`, trained by `fit`."""

import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(5)
x = np.random.default_rng(0).normal(size=(60, 8)).astype("float32")
y = np.sin(x[:, :1])


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.last = keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)

    def call(self, inputs):
        return self.last(self.first(inputs))

    def train_step(self, batch):
        a, b = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(a, training=True) - b))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}


model = Model()
model.compile(keras.optimizers.SGD(0.05))
model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
seen = [1.0]

np.savez(sys.argv[1], np.array(seen), *model.get_weights())
