# machine: 2 GPUs
"""Everything by options, GPUs set up first, one strategy for any number of devices."""

import argparse
import os


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--per-replica-batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--log-level", default="2", choices=["0", "1", "2", "3"])
    return parser.parse_args()


def set_up_gpus():
    import tensorflow as tf

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)


def get_strategy():
    import tensorflow as tf

    if len(tf.config.list_physical_devices("GPU")) > 1:
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


def main():
    args = parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = args.log_level

    import keras
    import numpy as np
    import tensorflow as tf

    set_up_gpus()
    strategy = get_strategy()
    batch_size = args.per_replica_batch * strategy.num_replicas_in_sync

    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((15,)), keras.layers.Dense(30, activation="relu"), keras.layers.Dense(1)]
        )
        model.compile(optimizer=keras.optimizers.Adam(args.lr), loss="mse")

    x = np.random.default_rng(0).normal(size=(1024, 15)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1))).shuffle(1024)
    model.fit(dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE), epochs=args.epochs)


if __name__ == "__main__":
    main()
