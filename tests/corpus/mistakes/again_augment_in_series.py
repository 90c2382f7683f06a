# machine: 1 GPU
"""A fluent pipeline: each stage a function of its own, none of them parallel, none ahead."""

from functools import reduce

import keras
import numpy as np
import tensorflow as tf


def decode(image, label):
    return tf.cast(image, tf.float32) / 255.0, label


def augment(image, label):
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_brightness(image, 0.2)
    return tf.image.random_crop(tf.image.resize(image, (72, 72)), (64, 64, 3)), label


def pipeline(*stages):
    return lambda dataset: reduce(lambda data, stage: stage(data), stages, dataset)


train_pipeline = pipeline(
    lambda data: data.shuffle(512),
    lambda data: data.map(decode),  # may: DOC-401
    lambda data: data.map(augment),  # finding: DOC-401
    lambda data: data.batch(64),  # may: DOC-401
)

images = np.random.randint(0, 256, size=(512, 64, 64, 3)).astype("uint8")
labels = np.random.randint(0, 10, size=512)
dataset = train_pipeline(tf.data.Dataset.from_tensor_slices((images, labels)))  # may: DOC-401

model = keras.Sequential(
    [
        keras.Input((64, 64, 3)),
        keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
        keras.layers.Conv2D(64, 3, strides=2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
model.fit(dataset, epochs=1)  # may: DOC-401
