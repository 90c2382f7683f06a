# machine: 1 GPU
"""The settings of the runtime are applied first thing in main: too late."""

import os
from dataclasses import dataclass, field

import keras
import numpy as np
import tensorflow as tf


@dataclass
class Runtime:
    env: dict = field(default_factory=dict)
    seed: int = 0

    def apply(self):
        os.environ.update(self.env)
        keras.utils.set_random_seed(self.seed)


def apply_quiet():
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # finding: DOC-104
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # finding: DOC-104


def main():
    apply_quiet()
    Runtime(seed=3).apply()
    x = np.random.normal(size=(1024, 20)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, 0])).batch(256).prefetch(2)
    model = keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
    model.compile(optimizer="rmsprop", loss="mae")
    model.fit(dataset, epochs=2)


if __name__ == "__main__":
    main()
