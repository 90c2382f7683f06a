# machine: 2 GPUs
"""The functional model is made by a function before the scope; compile is inside."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers


def make_model(length, classes):
    inputs = keras.Input((length, 1))
    x = layers.Conv1D(16, 5, activation="relu")(inputs)
    x = layers.GlobalMaxPooling1D()(x)
    outputs = layers.Dense(classes, activation="softmax")(x)
    return keras.Model(inputs, outputs, name="signals")  # may: DOC-215


def main():
    signals = np.random.normal(size=(512, 64, 1)).astype("float32")
    kinds = np.random.randint(0, 3, size=512)

    strategy = tf.distribute.MirroredStrategy()
    model = make_model(64, 3)  # finding: DOC-215
    model.summary()

    with strategy.scope():
        model.compile(
            optimizer=keras.optimizers.Adam(),
            loss=keras.losses.SparseCategoricalCrossentropy(),
            metrics=["accuracy"],
        )
    model.fit(signals, kinds, batch_size=64 * strategy.num_replicas_in_sync, epochs=2)


if __name__ == "__main__":
    main()
