# machine: 4 GPUs
"""Blocks as class attributes; large images, so only four of them on each GPU."""

import keras
import numpy as np
import tensorflow as tf


class ConvNet:
    filters = (16, 32)
    norm = keras.layers.BatchNormalization  # may: DOC-307
    act = "relu"

    @classmethod
    def block(cls, x, filters):
        x = keras.layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False)(x)
        x = cls.norm()(x)  # finding: DOC-307
        return keras.layers.Activation(cls.act)(x)

    @classmethod
    def build(cls, size, classes):
        inputs = x = keras.Input((size, size, 3))
        for filters in cls.filters:
            x = cls.block(x, filters)
        x = keras.layers.GlobalMaxPooling2D()(x)
        return keras.Model(inputs, keras.layers.Dense(classes, "softmax")(x))


def generate(num, size):
    for i in range(num):
        rng = np.random.default_rng(i)
        yield rng.normal(size=(size, size, 3)).astype("float32"), i % 4


def main(size=64):
    strategy = tf.distribute.MirroredStrategy()
    batch = 4 * strategy.num_replicas_in_sync  # may: DOC-205, DOC-307
    spec = (tf.TensorSpec((size, size, 3)), tf.TensorSpec((), tf.int32))
    data = tf.data.Dataset.from_generator(lambda: generate(128, size), output_signature=spec)
    with strategy.scope():
        model = ConvNet.build(size, 4)
        model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
    model.fit(data.batch(batch, drop_remainder=True).prefetch(2), epochs=1)  # may: DOC-205


main()
