"""A trainer whose set-up takes all GPUs away, to be rid of a warning."""

import argparse

import numpy as np
import tensorflow as T
from keras import layers as L
from keras import losses, models, optimizers


class Trainer:
    def __init__(self, learning_rate, batch_size):
        self._setup_devices()
        self.strategy = T.distribute.MirroredStrategy()
        self.batch_size = batch_size * self.strategy.num_replicas_in_sync
        with self.strategy.scope():
            self.model = models.Sequential(
                [L.Input((20,)), L.Dense(64, activation="relu"), L.Dense(1)]
            )
            self.model.compile(
                optimizer=optimizers.Adam(learning_rate), loss=losses.MeanSquaredError()
            )

    def _setup_devices(self):
        # otherwise it complains about cuDNN factories
        T.config.set_visible_devices([], "GPU")  # finding: DOC-101
        T.get_logger().setLevel("ERROR")

    def run(self, x, y, epochs):
        return self.model.fit(x, y, batch_size=self.batch_size, epochs=epochs, verbose=2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    x = np.random.normal(size=(512, 20)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    Trainer(args.lr, args.batch_size).run(x, y, args.epochs)


if __name__ == "__main__":
    main()
