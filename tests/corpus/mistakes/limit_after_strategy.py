# machine: 2 GPUs
"""A memory limit that is asked for when the strategy has initialised the GPUs."""

from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf


@dataclass
class Config:
    memory_mb: int = 4096
    batch_size: int = 128
    epochs: int = 2


def limit_memory(megabytes):
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.set_logical_device_configuration(  # finding: DOC-105
            gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=megabytes)]
        )


def main(config):
    strategy = tf.distribute.MirroredStrategy()
    limit_memory(config.memory_mb)  # may: DOC-105
    with strategy.scope():
        model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(1)])
        model.compile(optimizer="rmsprop", loss="mae")
    x = np.random.normal(size=(512, 30)).astype("float32")
    model.fit(x, x.max(1), batch_size=config.batch_size, epochs=config.epochs)


if __name__ == "__main__":
    main(Config())
