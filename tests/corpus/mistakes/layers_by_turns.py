# machine: 2 GPUs
"""Layers are dealt out like cards: each activation crosses to the other GPU and back."""

import keras
import numpy as np
import tensorflow as tf


class Dealt(keras.Model):
    def __init__(self, depth=8, width=256):
        super().__init__()
        self.steps = []
        for i in range(depth):
            with tf.device(f"/gpu:{i % 2}"):
                layer = keras.layers.Dense(width, activation="relu")
                layer.build((None, width))
            self.steps.append(layer)
        self.out = keras.layers.Dense(1)

    def call(self, x):
        for i, layer in enumerate(self.steps):
            with tf.device(f"/gpu:{i % 2}"):  # finding: DOC-406
                x = layer(x)
        return self.out(x)


model = Dealt()
optimizer = keras.optimizers.SGD(0.01)


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
    gradients = tape.gradient(loss, model.trainable_variables)  # may: DOC-301
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


x = np.random.normal(size=(512, 256)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(128).prefetch(2)
for features, targets in dataset:
    loss = train_step(features, targets)
print("loss", float(loss))
