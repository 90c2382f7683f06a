# machine: 1 GPU
"""A checkpoint manager that holds the model and the epoch, but not the optimizer."""

import tempfile

import numpy as np
import tensorflow as tf


class Trainer:
    def __init__(self, folder):
        self.model = tf.keras.Sequential([tf.keras.Input((7,)), tf.keras.layers.Dense(7)])
        self.optimizer = tf.keras.optimizers.Adam(1e-2)
        self.epoch = tf.Variable(0, dtype=tf.int64)
        self.checkpoint = tf.train.Checkpoint(  # finding: DOC-502
            model=self.model, epoch=self.epoch
        )
        self.manager = tf.train.CheckpointManager(self.checkpoint, folder, max_to_keep=2)
        self.checkpoint.restore(self.manager.latest_checkpoint)  # may: DOC-502

    @tf.function
    def step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x, training=True) - x))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        return loss

    def train(self, dataset, epochs):
        while int(self.epoch) < epochs:
            for x in dataset:
                loss = self.step(x)
            self.epoch.assign_add(1)
            print("epoch", int(self.epoch), float(loss), self.manager.save())


if __name__ == "__main__":
    data = np.random.normal(size=(256, 7)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(64).prefetch(2)
    folder = tempfile.mkdtemp()
    Trainer(folder).train(dataset, 1)
    Trainer(folder).train(dataset, 3)
