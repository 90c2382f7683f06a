# machine: 2 GPUs
"""The strategy comes from a function of another name, through an option."""

import argparse
import contextlib

import numpy as np
import tensorflow as tf


def choose(name):
    if name == "mirrored":
        return tf.distribute.MirroredStrategy()
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--distribute", default="mirrored")
    args = parser.parse_args()
    strategy = choose(args.distribute)
    scope = strategy.scope() if strategy else contextlib.nullcontext()
    with scope:
        model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
        model.compile("adam", "mse")
    x = np.random.rand(512, 4)
    replicas = strategy.num_replicas_in_sync if strategy else 1
    model.fit(x, x[:, 0], batch_size=64 * replicas, epochs=1)


if __name__ == "__main__":
    main()
