"""Keras program for one device, which several workers run too; it goes on from its checkpoints.

python train.py
evener launch --workers 3 --devices cpu:1 --devices cpu:2 --devices cpu:1 train.py
"""

import sys
from pathlib import Path

import keras
import numpy as np

import evener


def main(folder: Path) -> None:
    """Train a small classifier."""
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((20,)),
            layers.Dense(64, activation="tanh"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(5),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 20)).astype("float32")
    y = np.argmax(x[:, :5], axis=1)
    checkpoints = evener.CheckpointCallback(folder / "checkpoints", every_steps=100)
    model.fit(x, y, batch_size=64, epochs=10, verbose=2, callbacks=[checkpoints])
    model.save(folder / "model.keras")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "run"))
