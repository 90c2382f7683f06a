# machine: 4 GPUs
"""compute_average_loss knows the replicas; the closure divides by them again."""

from functools import partial

import keras
import numpy as np
import tensorflow as tf


def scaled(loss, n):
    return loss / n  # may: DOC-304


def make_loss(global_batch, n):
    each = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    average = partial(tf.nn.compute_average_loss, global_batch_size=global_batch)

    def loss_fn(labels, logits):
        return scaled(average(each(labels, logits)), n)  # finding: DOC-304

    return loss_fn


def main():
    strategy = tf.distribute.MirroredStrategy()
    n = strategy.num_replicas_in_sync
    global_batch = 64 * n
    loss_fn = make_loss(global_batch, n)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((9,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(3)]
        )
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    @tf.function
    def step(x, y):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    x = np.random.normal(size=(2048, 9)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, np.argmax(x[:, :3], axis=1)))
    for batch in strategy.experimental_distribute_dataset(data.batch(global_batch).prefetch(2)):
        loss = step(*batch)
    print(float(loss))


main()
