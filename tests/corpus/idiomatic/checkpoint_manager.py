# machine: 1 GPU
"""Goes on where it stopped: model, optimizer and step are restored together."""

import tempfile

import keras
import numpy as np
import tensorflow as tf


class Training:
    def __init__(self, folder):
        self.model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6)])
        self.optimizer = keras.optimizers.Adam(1e-2)
        self.optimizer.build(self.model.trainable_variables)
        self.step_count = tf.Variable(0, trainable=False, dtype=tf.int64)
        checkpoint = tf.train.Checkpoint(
            model=self.model, optimizer=self.optimizer, step=self.step_count
        )
        self.manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=3)
        if self.manager.restore_or_initialize():
            print("restored from", self.manager.latest_checkpoint)

    @tf.function
    def step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x, training=True) - x))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        self.step_count.assign_add(1)
        return loss

    def run(self, dataset, epochs):
        for _ in range(epochs):
            for x in dataset:
                loss = self.step(x)
            path = self.manager.save(checkpoint_number=self.step_count)
            print("step", int(self.step_count), "loss", float(loss), "saved", path)


if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    data = np.random.default_rng(0).normal(size=(512, 6)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices(data).shuffle(512).batch(64).prefetch(2)
    Training(folder).run(dataset, epochs=1)
    Training(folder).run(dataset, epochs=1)
