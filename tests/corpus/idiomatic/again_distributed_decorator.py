# machine: 2 GPUs
"""A decorator makes a replica function into a step of all devices."""

import functools

import keras
import numpy as np
import tensorflow as tf


def distributed(strategy):
    """``fn(*batch)`` on every replica; what it gives is summed up."""

    def wrap(fn):
        @tf.function
        @functools.wraps(fn)
        def step(*batch):
            parts = strategy.run(fn, args=batch)
            return strategy.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None)

        return step

    return wrap


strategy = tf.distribute.MirroredStrategy()
global_batch = 32 * strategy.num_replicas_in_sync
with strategy.scope():
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(2)]
    )
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    criterion = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


@distributed(strategy)
def train_step(x, y):
    with tf.GradientTape() as tape:
        each = criterion(y, model(x, training=True))
        loss = tf.nn.compute_average_loss(each, global_batch_size=global_batch)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


@distributed(strategy)
def count_right(x, y):
    guess = tf.argmax(model(x, training=False), axis=-1, output_type=y.dtype)
    return tf.reduce_sum(tf.cast(guess == y, tf.float32))


x = np.random.normal(size=(1024, 8)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, (x[:, 0] > 0).astype("int32")))
data = strategy.experimental_distribute_dataset(data.batch(global_batch).prefetch(2))
for epoch in range(2):
    total, steps = tf.zeros(()), 0
    for batch in data:
        total += train_step(*batch)
        steps += 1
    right = sum(count_right(*batch) for batch in data)
    print(f"epoch {epoch}: loss {float(total) / steps:.4f} right {float(right) / len(x):.3f}")
