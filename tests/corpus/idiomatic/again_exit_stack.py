# machine: 2 GPUs
"""Contexts by an ExitStack and one's own: closed again before the training begins."""

import contextlib
import time

import keras
import numpy as np
import tensorflow as tf


@contextlib.contextmanager
def seeded(seed):
    keras.utils.set_random_seed(seed)
    yield


@contextlib.contextmanager
def timed(what):
    begun = time.perf_counter()
    try:
        yield
    finally:
        print(f"{what}: {time.perf_counter() - begun:.1f} s")


def build(strategy, dim):
    with contextlib.ExitStack() as stack:
        stack.enter_context(seeded(1))
        stack.enter_context(strategy.scope())
        model = keras.Sequential(
            [keras.Input((dim,)), keras.layers.Dense(96, "relu"), keras.layers.Dense(1)]
        )
        model.compile(optimizer="adam", loss="mse")
    return model


def main(dim=14):
    strategy = tf.distribute.MirroredStrategy()
    model = build(strategy, dim)
    x = np.random.normal(size=(2048, dim)).astype("float32")
    with timed("training"):
        model.fit(x, x[:, :1], batch_size=128 * strategy.num_replicas_in_sync, epochs=2)


main()
