# machine: 2 GPUs
"""Growth is set in a function that main calls before anything else."""

import numpy as np
import tensorflow as tf


def build():
    # Not run before main calls it.
    first = tf.random.normal([4, 1])
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.layers[0].kernel.assign(first)
    return model


def allow_growth():
    print(len(tf.config.list_physical_devices("GPU")), "GPUs")
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)


def main():
    allow_growth()
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = build()
        model.compile("sgd", "mse")
    x = np.random.rand(256, 4)
    model.fit(x, x[:, 0], batch_size=64 * strategy.num_replicas_in_sync, epochs=1)


if __name__ == "__main__":
    main()
