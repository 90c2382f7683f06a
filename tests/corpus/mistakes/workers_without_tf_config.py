# machine: 2 GPUs
"""MultiWorker on every host of the cluster, but no host was told of the others."""

import argparse

import numpy as np
import tensorflow as tf


def build_and_compile():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((28, 28)),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.001),
        metrics=["accuracy"],
    )
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", default="10.0.0.1:12345,10.0.0.2:12345")
    parser.add_argument("--per-worker-batch", type=int, default=64)
    args = parser.parse_args()

    num_workers = len(args.workers.split(","))
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # finding: DOC-208
    global_batch = args.per_worker_batch * num_workers

    x = np.random.rand(1024, 28, 28).astype("float32")
    y = np.random.randint(0, 10, 1024)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1024).repeat()
    dataset = dataset.batch(global_batch).prefetch(tf.data.AUTOTUNE)

    with strategy.scope():
        model = build_and_compile()
    model.fit(dataset, epochs=2, steps_per_epoch=8)  # finding: DOC-219


if __name__ == "__main__":
    main()
