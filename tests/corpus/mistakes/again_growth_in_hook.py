"""A base class with hooks; one of them sets up the GPUs when the strategy is there already."""

import keras
import numpy as np
import tensorflow as tf


class BaseTrainer:
    lr = 1e-3
    epochs = 2
    per_device_batch = 32

    def __init__(self):
        self.strategy = tf.distribute.MirroredStrategy()
        self.on_setup()
        with self.strategy.scope():
            self.model = self.build_model()
            self.model.compile(optimizer=keras.optimizers.Adam(self.lr), loss="mse")

    def on_setup(self):
        pass

    def build_model(self):
        raise NotImplementedError

    def train_data(self):
        raise NotImplementedError

    @property
    def global_batch(self):
        return self.per_device_batch * self.strategy.num_replicas_in_sync

    def fit(self):
        return self.model.fit(self.train_data(), epochs=self.epochs)


class RegressionTrainer(BaseTrainer):
    def on_setup(self):
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)  # finding: DOC-105

    def build_model(self):
        return keras.Sequential(
            [keras.Input((12,)), keras.layers.Dense(48, "tanh"), keras.layers.Dense(1)]
        )

    def train_data(self):
        x = np.random.normal(size=(2048, 12)).astype("float32")
        data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(2048)
        return data.batch(self.global_batch).prefetch(tf.data.AUTOTUNE)


if __name__ == "__main__":
    RegressionTrainer().fit()
