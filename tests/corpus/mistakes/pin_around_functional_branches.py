# machine: 2 GPUs
"""Two inputs, one branch "on" each card; the profile shows the first card alone."""

import argparse

import keras
import numpy as np
import tensorflow as tf
from keras import layers as L


def two_branches(width):
    left = keras.Input((32,), name="left")
    right = keras.Input((32,), name="right")
    with tf.device("/GPU:0"):  # finding: DOC-302
        a = L.Dense(width, activation="relu")(left)
        a = L.Dense(width, activation="relu")(a)
    with tf.device("/GPU:1"):  # finding: DOC-302
        b = L.Dense(width, activation="relu")(right)
        b = L.Dense(width, activation="relu")(b)
    outputs = L.Dense(1)(L.Concatenate()([a, b]))
    return keras.Model([left, right], outputs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    model = two_branches(args.width)
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse")
    a = np.random.normal(size=(512, 32)).astype("float32")
    b = np.random.normal(size=(512, 32)).astype("float32")
    y = (a * b).sum(axis=1)
    model.fit([a, b], y, batch_size=128, epochs=2)  # may: DOC-201


if __name__ == "__main__":
    main()
