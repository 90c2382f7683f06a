# machine: 2 GPUs
"""A subclassed model with a train_step of its own, under MirroredStrategy and fit."""

import keras
import numpy as np
import tensorflow as tf


class Autoencoder(keras.Model):
    def __init__(self, width):
        super().__init__()
        self.encoder = keras.layers.Dense(width, activation="relu")
        self.decoder = keras.layers.Dense(20)
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, x):
        return self.decoder(self.encoder(x))

    @property
    def metrics(self):
        return [self.loss_tracker]

    def train_step(self, data):
        x, _ = data
        with tf.GradientTape() as tape:
            reconstruction = self(x, training=True)
            loss = self.compute_loss(x=x, y=x, y_pred=reconstruction)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = Autoencoder(8)
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=keras.losses.MeanSquaredError())

x = np.random.default_rng(0).normal(size=(1024, 20)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x)).shuffle(1024)
dataset = dataset.batch(64 * strategy.num_replicas_in_sync, drop_remainder=True)
model.fit(dataset.prefetch(tf.data.AUTOTUNE), epochs=2)
