"""A custom loop that gives NumPy arrays to `strategy.run`, which nobody splits.

MirroredStrategy on two devices stops in the first step: InvalidArgumentError: You must feed a
value for placeholder tensor, for the optimizer's variables, which are made in the function. With
`optimizer.build` before, both devices compute the whole batch: right, at the speed of one.
"""

import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
images = rng.normal(size=(80, 8, 8, 1)).astype(np.float32)
targets = images.mean(axis=(1, 2))

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    inputs = keras.Input((8, 8, 1))
    h = keras.layers.Conv2D(4, 3, activation="relu")(inputs)
    h = keras.layers.GlobalAveragePooling2D()(h)
    model = keras.Model(inputs, keras.layers.Dense(1)(h))
    optimizer = keras.optimizers.RMSprop(1e-2)
    mse = keras.losses.MeanSquaredError()


def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = mse(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@tf.function
def distributed_train_step(x, y):
    per_replica = strategy.run(train_step, args=(x, y))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)


batch_size = 16
for epoch in range(2):
    order = rng.permutation(len(images))
    for start in range(0, len(images), batch_size):
        batch = order[start : start + batch_size]
        loss = distributed_train_step(images[batch], targets[batch])
    print("epoch", epoch, "loss", round(float(loss), 6))

np.savez(sys.argv[1], *model.get_weights())
