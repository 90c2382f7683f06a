"""Several workers: the cluster is set first, all workers save, but the fit is that of Keras 3."""

import json
import os
import pathlib
import sys

import keras
import numpy as np


class Worker:
    hosts = ("localhost:23456", "localhost:23457")
    epochs = 2
    per_replica = 32

    def __init__(self, index):
        self.index = index
        self.join()
        import tensorflow as tf

        self.tf = tf
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def join(self):
        task = {"type": "worker", "index": self.index}
        os.environ["TF_CONFIG"] = json.dumps(
            {"cluster": {"worker": list(self.hosts)}, "task": task}
        )

    @property
    def folder(self):
        base = pathlib.Path("/tmp/again_workers")
        return base / ("chief" if self.index == 0 else f"worker_{self.index}")

    def data(self):
        x = np.random.default_rng(0).normal(size=(1024, 8)).astype("float32")
        data = self.tf.data.Dataset.from_tensor_slices((x, x[:, 0])).shuffle(1024, seed=0)
        return data.batch(self.per_replica * self.strategy.num_replicas_in_sync).prefetch(2)

    def train(self):
        with self.strategy.scope():
            model = keras.Sequential(
                [keras.Input((8,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
            )
            model.compile(optimizer="adam", loss="mse")
        model.fit(self.data(), epochs=self.epochs)  # finding: DOC-219
        self.folder.mkdir(parents=True, exist_ok=True)
        model.save(self.folder / "model.keras")


if __name__ == "__main__":
    Worker(int(sys.argv[1]) if len(sys.argv) > 1 else 0).train()
