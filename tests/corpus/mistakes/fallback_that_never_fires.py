# machine: 2 GPUs
"""Falls back to one device where there are no GPUs; it never does."""

import numpy as np
import tensorflow as tf


def get_strategy():
    try:
        strategy = tf.distribute.MirroredStrategy()  # may: DOC-209
        print("Using", strategy.num_replicas_in_sync, "GPUs")
    except Exception:  # finding: DOC-209
        print("No GPU found, using the CPU")
        strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    return strategy


def main():
    strategy = get_strategy()
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.Input((9,)), tf.keras.layers.Dense(18, "relu"), tf.keras.layers.Dense(3)]
        )
        model.compile("adam", "mae")
    x = np.random.rand(512, 9).astype("float32")
    model.fit(x, x[:, ::3], batch_size=64 * strategy.num_replicas_in_sync, epochs=2)


if __name__ == "__main__":
    main()
