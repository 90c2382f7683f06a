"""A custom loop that cuts the batch by hand and calls `strategy.run` once per shard.

MirroredStrategy on two devices stops in the first step: InvalidArgumentError: You must feed a
value for placeholder tensor, for the optimizer's variables, which are made in the function. With
`opt.build` before, both devices compute both shards, and every batch makes two updates on half of
it each: weights are silently others than on one device, by 0.05 after two epochs.
"""

import sys

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(1)
X = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
Y = np.tanh(X @ np.ones((6, 1), "float32"))

strategy = tf.distribute.MirroredStrategy()
n_gpus = strategy.num_replicas_in_sync

with strategy.scope():
    model = tf.keras.Sequential()
    model.add(tf.keras.layers.Input((6,)))
    model.add(tf.keras.layers.Dense(12, activation="tanh"))
    model.add(tf.keras.layers.Dense(1))
    opt = tf.keras.optimizers.Adam(0.01)
    loss_obj = tf.keras.losses.MeanSquaredError()


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_obj(y, model(x))
    opt.apply_gradients(
        zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    )
    return loss


for epoch in range(2):
    for i in range(0, len(X), 32):
        # one shard of the batch for each GPU
        x_shards = tf.split(X[i : i + 32], n_gpus)
        y_shards = tf.split(Y[i : i + 32], n_gpus)
        losses = []
        for xs, ys in zip(x_shards, y_shards):
            losses.append(strategy.run(step, args=(xs, ys)))
    print("epoch", epoch)

np.savez(sys.argv[1], *[v.numpy() for v in model.trainable_variables])
