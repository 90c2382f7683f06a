"""Contexts by an ExitStack: the scope stays open while the whole training goes on."""

import contextlib
import time

import keras
import numpy as np
import tensorflow as tf


@contextlib.contextmanager
def timed(what):
    begun = time.perf_counter()
    yield
    print(what, f"{time.perf_counter() - begun:.1f} s")


def make(dim):
    model = keras.Sequential(
        [keras.Input((dim,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
    )
    optimizer = keras.optimizers.SGD(0.05)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def main(epochs=2, dim=5):
    strategy = tf.distribute.MirroredStrategy()
    batch = 64 * strategy.num_replicas_in_sync
    x = np.random.normal(size=(1024, dim)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(batch).prefetch(2)
    data = strategy.experimental_distribute_dataset(data)

    with timed("all"), strategy.scope():  # may: DOC-203
        model, optimizer = make(dim)

        def replica(x, y):
            with tf.GradientTape() as tape:
                each = keras.losses.mean_absolute_error(y, model(x))
                loss = tf.nn.compute_average_loss(each, global_batch_size=batch)
            grads = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(grads, model.trainable_variables))
            return loss

        @tf.function
        def step(x, y):
            return strategy.reduce("SUM", strategy.run(replica, args=(x, y)), axis=None)

        for epoch in range(epochs):  # finding: DOC-203
            for x_batch, y_batch in data:
                loss = step(x_batch, y_batch)
            print(epoch, float(loss))


main()
