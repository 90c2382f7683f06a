# machine: 2 GPUs
"""A trainer that is given a strategy, keeps it, and forgets it."""

import numpy as np
import tensorflow as tf
from tensorflow import distribute as d
from tensorflow.keras import layers as L


class Trainer:
    def __init__(self, strategy, units):
        self.strategy = strategy
        self.model = tf.keras.Sequential([L.Input((8,)), L.Dense(units, "relu"), L.Dense(1)])
        self.optimizer = tf.keras.optimizers.Adam()
        self.loss_fn = tf.keras.losses.MeanSquaredError()

    @tf.function
    def step(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss_fn(y, self.model(x, training=True))
        grads = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.model.trainable_variables))
        return loss

    def train(self, dataset, epochs):
        for epoch in range(epochs):
            for x, y in dataset:
                loss = self.step(x, y)  # may: DOC-201, RUN-006
            print(epoch, float(loss))


if __name__ == "__main__":
    strategy = d.MirroredStrategy()  # finding: DOC-202
    x = np.random.rand(512, 8).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(128).prefetch(2)
    Trainer(strategy, 32).train(data, 3)
