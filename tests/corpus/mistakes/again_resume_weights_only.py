# machine: 1 GPU
"""Resumes after preemption: the weights come back, Adam's moments do not."""

import os

import keras
import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("workdir", "/tmp/again_resume", "Where the weights are.")
flags.DEFINE_integer("epochs", 3, "Epochs in all.")


class SaveEveryEpoch(keras.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        self.model.save_weights(self.path)  # may: DOC-502


def build():
    model = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)]
    )
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse")
    return model


def main(_):
    os.makedirs(FLAGS.workdir, exist_ok=True)
    path = os.path.join(FLAGS.workdir, "last.weights.h5")
    model = build()
    if os.path.exists(path):
        model.load_weights(path)  # finding: DOC-502
        print("goes on from", path)
    x = np.random.normal(size=(1024, 16)).astype("float32")
    model.fit(x, x[:, :1], batch_size=128, epochs=FLAGS.epochs, callbacks=[SaveEveryEpoch(path)])


if __name__ == "__main__":
    app.run(main)
