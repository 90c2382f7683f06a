# machine: 4 GPUs
"""A custom loop for a machine with two GPUs; somebody added two more."""

import numpy as np
import tensorflow as tf

NUM_GPUS = 2  # may: DOC-108
BATCH_PER_GPU = 32
GLOBAL_BATCH = BATCH_PER_GPU * NUM_GPUS  # finding: DOC-108

x = np.random.normal(size=(512, 10)).astype("float32")
y = x.mean(axis=1, keepdims=True)

strategy = tf.distribute.MirroredStrategy()
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(512).batch(GLOBAL_BATCH)
dataset = strategy.experimental_distribute_dataset(dataset.prefetch(2))

with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.Input((10,)), tf.keras.layers.Dense(20, "tanh"), tf.keras.layers.Dense(1)]
    )
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)


def replica_step(features, targets):
    with tf.GradientTape() as tape:
        error = tf.square(model(features, training=True) - targets)
        loss = tf.reduce_mean(error) / NUM_GPUS  # finding: DOC-108
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@tf.function
def train_step(features, targets):
    losses = strategy.run(replica_step, args=(features, targets))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


for epoch in range(2):
    for features, targets in dataset:
        loss = train_step(features, targets)
    print("epoch", epoch, "loss", loss.numpy())
