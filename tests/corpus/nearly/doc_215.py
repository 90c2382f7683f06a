# machine: 2 GPUs
"""The model is made in a function above the strategy, which is called in the scope."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers


def build_model():
    inputs = keras.Input((10,))
    x = layers.Dense(20, activation="relu")(inputs)
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile("adam", "mse")
    return model


def main():
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = build_model()
    # A second one, for the predictions of one device alone, is never trained.
    single = build_model()
    x = np.random.rand(512, 10)
    model.fit(x, x[:, 0], batch_size=64 * strategy.num_replicas_in_sync, epochs=1)
    single.set_weights(model.get_weights())
    print(single.predict(x[:8], verbose=0).shape)


if __name__ == "__main__":
    main()
