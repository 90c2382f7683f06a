# machine: 1 GPU
"""A trainer that is given model, optimizer and loss, with early stopping of its own."""

import keras
import numpy as np
import tensorflow as tf


class Trainer:
    def __init__(self, model, optimizer, loss):
        self.model = model
        self.optimizer = optimizer
        self.optimizer.build(model.trainable_variables)
        self.loss = loss
        self.train_loss = keras.metrics.Mean()
        self.valid_loss = keras.metrics.Mean()

    @tf.function
    def train_step(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss(y, self.model(x, training=True))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        self.train_loss.update_state(loss)

    @tf.function
    def valid_step(self, x, y):
        self.valid_loss.update_state(self.loss(y, self.model(x, training=False)))

    def fit(self, train, valid, epochs, patience=2):
        best, waited = float("inf"), 0
        for epoch in range(epochs):
            for x, y in train:
                self.train_step(x, y)
            for x, y in valid:
                self.valid_step(x, y)
            found = float(self.valid_loss.result())
            print(epoch, float(self.train_loss.result()), found)
            self.train_loss.reset_state()
            self.valid_loss.reset_state()
            best, waited = (found, 0) if found < best else (best, waited + 1)
            if waited >= patience:
                break


def batches(x, y):
    data = tf.data.Dataset.from_tensor_slices((x, y))
    return data.shuffle(1024).batch(64, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


if __name__ == "__main__":
    x = np.random.default_rng(0).normal(size=(1024, 7)).astype("float32")
    y = x[:, :1] - x[:, 1:2]
    net = keras.Sequential(
        [keras.Input((7,)), keras.layers.Dense(14, "elu"), keras.layers.Dense(1)]
    )
    trainer = Trainer(net, keras.optimizers.RMSprop(1e-3), keras.losses.Huber())
    trainer.fit(batches(x[:896], y[:896]), batches(x[896:], y[896:]), epochs=3)
