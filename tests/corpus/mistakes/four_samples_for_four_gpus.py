# machine: 4 GPUs
"""A segmentation model with one picture for each GPU, normalised by itself."""

import argparse

import keras
import numpy as np
import tensorflow as tf
from keras import layers


def unet(size):
    inputs = keras.Input((size, size, 3))
    down = layers.Conv2D(8, 3, padding="same", use_bias=False)(inputs)
    down = layers.BatchNormalization()(down)
    down = layers.Activation("relu")(down)
    middle = layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(down)
    up = layers.Conv2DTranspose(8, 3, strides=2, padding="same", activation="relu")(middle)
    outputs = layers.Conv2D(1, 1, activation="sigmoid")(layers.Concatenate()([down, up]))
    return keras.Model(inputs, outputs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()

    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = unet(32)
        model.compile("adam", "binary_crossentropy")

    pictures = np.random.rand(32, 32, 32, 3).astype("float32")
    masks = (pictures[..., :1] > 0.5).astype("float32")
    model.fit(pictures, masks, batch_size=4, epochs=args.epochs)  # finding: DOC-205


if __name__ == "__main__":
    main()
