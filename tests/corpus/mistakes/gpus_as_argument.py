"""Somebody hopes that fit takes the number of GPUs."""

import numpy as np
from tensorflow import keras


def main(num_gpus=2):
    x = np.random.rand(1024, 20).astype("float32")
    y = (x.sum(axis=1) > 10).astype("float32")
    model = keras.Sequential()
    model.add(keras.Input((20,)))
    model.add(keras.layers.Dense(32, activation="relu"))
    model.add(keras.layers.Dense(1, activation="sigmoid"))
    model.compile(optimizer="adam", loss="binary_crossentropy")
    model.fit(x, y, batch_size=64, epochs=2, num_gpus=num_gpus)  # finding: DOC-109  # may: DOC-201


main()
