# machine: 4 GPUs
"""The number of GPUs stands in the configuration, beside the learning rate."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf


@dataclasses.dataclass
class TrainConfig:
    num_gpus: int = 2  # may: DOC-108
    batch_per_gpu: int = 64
    learning_rate: float = 1e-3
    epochs: int = 2


class Experiment:
    def __init__(self, config: TrainConfig):
        self.config = config
        self.strategy = tf.distribute.MirroredStrategy()
        self.global_batch = config.batch_per_gpu * config.num_gpus  # finding: DOC-108
        self.learning_rate = config.learning_rate * config.num_gpus  # finding: DOC-108

    def data(self):
        x = np.random.normal(size=(1024, 12)).astype("float32")
        dataset = tf.data.Dataset.from_tensor_slices((x, np.sin(x[:, :3])))
        return dataset.shuffle(1024).batch(self.global_batch).prefetch(tf.data.AUTOTUNE)

    def run(self):
        with self.strategy.scope():
            model = keras.Sequential(
                [keras.Input((12,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(3)]
            )
            model.compile(keras.optimizers.Adam(self.learning_rate), "mse")
        model.fit(self.data(), epochs=self.config.epochs)


if __name__ == "__main__":
    Experiment(TrainConfig()).run()
