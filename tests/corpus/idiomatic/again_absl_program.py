# machine: 2 GPUs
"""absl flags; growth is set on all GPUs before anything asks for them."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags, logging

FLAGS = flags.FLAGS
flags.DEFINE_integer("per_device_batch", 64, "Samples for each device.")
flags.DEFINE_integer("epochs", 2, "Epochs.")
flags.DEFINE_boolean("growth", True, "Take the memory of the GPUs as it is needed.")
flags.DEFINE_enum("optimizer", "adam", ["adam", "sgd"], "The optimizer.")


def set_up():
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, FLAGS.growth)
    return tf.distribute.MirroredStrategy()


def input_fn(global_batch):
    x = np.random.normal(size=(4096, 20)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, np.argmax(x[:, :3], axis=1)))
    return data.cache().shuffle(4096).batch(global_batch).prefetch(tf.data.AUTOTUNE)


def main(argv):
    del argv
    strategy = set_up()
    logging.info("devices: %d", strategy.num_replicas_in_sync)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((20,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(3)]
        )
        model.compile(
            optimizer=FLAGS.optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(
        input_fn(FLAGS.per_device_batch * strategy.num_replicas_in_sync), epochs=FLAGS.epochs
    )
    logging.info("last loss %.4f", history.history["loss"][-1])


if __name__ == "__main__":
    app.run(main)
