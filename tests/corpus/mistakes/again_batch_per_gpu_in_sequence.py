# machine: 4 GPUs
"""The size for one GPU goes to .batch() as it is."""

from absl import app, flags

import keras
import numpy as np
import tensorflow as tf

FLAGS = flags.FLAGS
flags.DEFINE_integer("batch_size_per_gpu", 32, "Samples for each GPU in a step.")
flags.DEFINE_integer("epochs", 2, "Epochs.")
flags.DEFINE_float("learning_rate", 1e-3, "Learning rate.")


def input_fn(batch_size):
    x = np.random.normal(size=(4096, 12)).astype("float32")
    y = np.argmax(x[:, :3], axis=1)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096)
    return dataset.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def main(_):
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((12,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(3)]
        )
        model.compile(
            optimizer=keras.optimizers.Adam(FLAGS.learning_rate),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    train = input_fn(FLAGS.batch_size_per_gpu)  # finding: DOC-206
    model.fit(train, epochs=FLAGS.epochs)  # may: DOC-206


if __name__ == "__main__":
    app.run(main)
