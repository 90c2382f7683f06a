# machine: 2 GPUs
"""Times the step on one device, then the same step by strategy.run."""

import time

import numpy as np
import tensorflow as tf

GLOBAL_BATCH = 128
x = np.random.rand(2048, 8).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(x).batch(GLOBAL_BATCH).prefetch(tf.data.AUTOTUNE)


def make():
    return tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(512)])


def train_step(features):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(model(features))) / GLOBAL_BATCH
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


model = make()
optimizer = tf.keras.optimizers.SGD(0.01)
start = time.time()
for features in dataset:
    train_step(features)
print("one device:", time.time() - start)

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = make()
    optimizer = tf.keras.optimizers.SGD(0.01)


@tf.function
def distributed_step(features):
    strategy.run(train_step, args=(features,))


start = time.time()
for features in strategy.experimental_distribute_dataset(dataset):
    distributed_step(features)
print("all devices:", time.time() - start)
