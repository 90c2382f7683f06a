# machine: 2 GPUs
"""A loop written for one device, under evener's strategy: scope, dataset and run."""

import keras
import numpy as np
import tensorflow as tf

import evener

BATCH_SIZE = 128

strategy = evener.Strategy()
x = np.random.default_rng(1).normal(size=(1024, 12)).astype("float32")
y = np.tanh(x[:, :2])
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1024).batch(BATCH_SIZE).prefetch(2)
dataset = strategy.experimental_distribute_dataset(dataset)

with strategy.scope():
    model = keras.Sequential(
        [keras.Input((12,)), keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(2)]
    )
    optimizer = keras.optimizers.Adam(1e-2)
    loss_of = keras.losses.MeanSquaredError()
    mean_loss = keras.metrics.Mean()


def train_step(features, targets):
    with tf.GradientTape() as tape:
        loss = loss_of(targets, model(features, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    mean_loss.update_state(loss)


@tf.function
def step(features, targets):
    strategy.run(train_step, args=(features, targets))


for epoch in range(2):
    for features, targets in dataset:
        step(features, targets)
    print("epoch", epoch, "loss", float(mean_loss.result()))
    mean_loss.reset_state()
