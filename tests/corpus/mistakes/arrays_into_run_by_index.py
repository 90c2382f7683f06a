# machine: 2 GPUs
"""Batches are cut from arrays; strategy.run splits nothing, both GPUs compute all."""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(3)
train_x = rng.normal(size=(1024, 15)).astype("float32")
train_y = rng.integers(0, 5, size=1024)

strategy = tf.distribute.MirroredStrategy()
batch_size = 64 * strategy.num_replicas_in_sync

with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.Input((15,)), tf.keras.layers.Dense(30, "relu"), tf.keras.layers.Dense(5)]
    )
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    optimizer = tf.keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)


def compute(x, y):
    with tf.GradientTape() as tape:
        losses = loss_fn(y, model(x, training=True))
        loss = tf.nn.compute_average_loss(losses, global_batch_size=batch_size)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


@tf.function
def train_step(x, y):
    per_replica = strategy.run(compute, args=(x, y))  # finding: ENG-060
    return strategy.reduce("SUM", per_replica, axis=None)


for epoch in range(2):
    order = rng.permutation(len(train_x))
    for i in range(0, len(train_x), batch_size):
        index = order[i : i + batch_size]
        loss = train_step(  # may: ENG-060
            tf.convert_to_tensor(train_x[index]), tf.convert_to_tensor(train_y[index])
        )
    print("epoch", epoch, "loss", float(loss))
