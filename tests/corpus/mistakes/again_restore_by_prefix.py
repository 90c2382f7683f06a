# machine: 1 GPU
"""save() adds a number to the name; restore is given the name without it."""

import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf


class Run:
    prefix = "ckpt"

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
        )
        self.optimizer = keras.optimizers.Adam(1e-2)
        self.optimizer.build(self.model.trainable_variables)
        self.checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer)

    @tf.function
    def step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x) - x[:, :1]))
        grads = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.model.trainable_variables))
        return loss

    def save(self):
        self.checkpoint.save(str(self.folder / self.prefix))

    def resume(self):
        self.checkpoint.restore(str(self.folder / self.prefix))  # finding: DOC-501


with tempfile.TemporaryDirectory() as folder:
    run = Run(folder)
    x = np.random.normal(size=(256, 4)).astype("float32")
    for batch in tf.data.Dataset.from_tensor_slices(x).batch(64).prefetch(2):
        loss = run.step(batch)
    run.save()
    print("saved", float(loss))
    run.resume()
