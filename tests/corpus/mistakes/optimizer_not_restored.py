# machine: 1 GPU
"""Goes on from saved weights with an Adam that has forgotten everything."""

import argparse
import pathlib

import keras
import numpy as np


def build():
    model = keras.Sequential(
        [keras.Input((20,)), keras.layers.Dense(40, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse")
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--weights", default="/tmp/run.weights.h5")
    args = parser.parse_args()

    x = np.random.normal(size=(512, 20)).astype("float32")
    model = build()
    if args.resume and pathlib.Path(args.weights).exists():
        model.load_weights(args.weights)  # finding: DOC-502
    model.fit(x, x[:, 0], batch_size=64, epochs=3)
    model.save_weights(args.weights)  # may: DOC-502


if __name__ == "__main__":
    main()
