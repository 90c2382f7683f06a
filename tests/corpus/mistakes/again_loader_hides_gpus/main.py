# machine: 1 GPU
"""The loader was copied from a JAX project."""

import keras

from loader import Loader


def main():
    loader = Loader(num=1024, batch=128)
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(loader.train(), validation_data=loader.valid(), epochs=2, verbose=2)


if __name__ == "__main__":
    main()
