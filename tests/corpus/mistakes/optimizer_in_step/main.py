# machine: 1 GPU
"""Every step has an optimizer of its own, so Adam never has a second step."""

import keras
import numpy as np
import tensorflow as tf
from steps import train_step


def main():
    model = keras.Sequential(
        [keras.Input((13,)), keras.layers.Dense(26, activation="relu"), keras.layers.Dense(1)]
    )
    x = np.random.normal(size=(512, 13)).astype("float32")
    y = x[:, :1] ** 2
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(512).batch(64).prefetch(2)
    for epoch in range(2):
        for features, targets in dataset:
            loss = train_step(model, features, targets)
        print("epoch", epoch, "loss", float(loss))


if __name__ == "__main__":
    main()
