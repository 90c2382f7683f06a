"""Models by a registry; the experiment builds its model before the strategy is entered."""

import keras
import numpy as np
import tensorflow as tf

MODELS = {}


def model_fn(fn):
    MODELS[fn.__name__] = fn
    return fn


@model_fn
def wide(dim, units=512):
    return keras.Sequential(
        [keras.Input((dim,)), keras.layers.Dense(units, "relu"), keras.layers.Dense(1)]
    )


@model_fn
def deep(dim, units=64, depth=4):
    hidden = [keras.layers.Dense(units, "relu") for _ in range(depth)]
    return keras.Sequential([keras.Input((dim,)), *hidden, keras.layers.Dense(1)])


class Experiment:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = MODELS[cfg["model"]](**cfg["model_args"])  # finding: DOC-215
        self.strategy = tf.distribute.MirroredStrategy()

    def data(self):
        x = np.random.normal(size=(2048, 16)).astype("float32")
        batch = self.cfg["batch"] * self.strategy.num_replicas_in_sync
        return tf.data.Dataset.from_tensor_slices((x, x.sum(1))).batch(batch).prefetch(2)

    def run(self):
        with self.strategy.scope():
            self.model.compile(  # may: DOC-215
                optimizer=keras.optimizers.Adam(self.cfg["lr"]), loss="mse"
            )
        return self.model.fit(self.data(), epochs=self.cfg["epochs"])  # may: DOC-215


Experiment(
    {"model": "deep", "model_args": {"dim": 16, "depth": 3}, "batch": 64, "lr": 1e-3, "epochs": 2}
).run()
