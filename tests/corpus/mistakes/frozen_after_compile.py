# machine: 1 GPU
"""Fine-tuning: the base is thawed after compile, and stays frozen."""

import argparse

import keras
import numpy as np


def make_base():
    return keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
        ],
        name="base",
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()

    base = make_base()
    base.trainable = False
    model = keras.Sequential([keras.Input((32, 32, 3)), base, keras.layers.Dense(2)])
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    x = np.random.rand(128, 32, 32, 3).astype("float32")
    y = np.random.randint(0, 2, 128)
    model.fit(x, y, batch_size=32, epochs=args.epochs)

    base.trainable = True  # finding: DOC-308
    model.fit(x, y, batch_size=32, epochs=args.epochs)  # may: DOC-308


if __name__ == "__main__":
    main()
