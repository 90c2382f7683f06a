# machine: 2 GPUs
# driver: 470.10
"""The driver of the machine is older than CUDA 12 allows."""

import numpy as np
import tensorflow as tf  # finding: DOC-103


def get_model():
    model = tf.keras.Sequential()
    model.add(tf.keras.layers.Input((12,)))
    model.add(tf.keras.layers.Dense(24, activation="relu"))
    model.add(tf.keras.layers.Dense(3))
    return model


if __name__ == "__main__":
    strategy = tf.distribute.MirroredStrategy()  # may: DOC-103
    with strategy.scope():
        net = get_model()
        net.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    features = np.random.rand(300, 12)
    classes = np.random.randint(0, 3, 300)
    net.fit(features, classes, batch_size=100, epochs=3)
