# machine: 1 GPU
"""One program for each machine; the cluster is told when the strategy is already made."""

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import cluster

flags.DEFINE_integer("index", 0, "Which machine this is.")
flags.DEFINE_list("hosts", ["localhost:12345"], "All machines.")


def dataset(batch):
    x = np.random.normal(size=(1024, 8)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x[:, 0])).batch(batch).prefetch(2)


def main(_):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # finding: DOC-208
    cluster.export(flags.FLAGS.hosts, flags.FLAGS.index)  # may: DOC-208
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
        )
        model.compile(optimizer="adam", loss="mse")
    model.fit(dataset(64 * strategy.num_replicas_in_sync), epochs=2)  # finding: DOC-219


if __name__ == "__main__":
    app.run(main)
