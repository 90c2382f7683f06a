# machine: 2 GPUs
"""BatchNormalization: synchronized with few samples, plain with many."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers


def small_batch_model():
    return keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(8, 3, use_bias=False),
            layers.BatchNormalization(synchronized=True),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2),
        ]
    )


def large_batch_model():
    return keras.Sequential(
        [keras.Input((8,)), layers.Dense(8), layers.BatchNormalization(), layers.Dense(1)]
    )


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    pictures = small_batch_model()
    pictures.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    numbers = large_batch_model()
    numbers.compile("sgd", "mse")

replicas = strategy.num_replicas_in_sync
x = np.random.rand(512, 8)
numbers.fit(x, x[:, 0], batch_size=128 * replicas, epochs=1)
images = np.random.rand(64, 16, 16, 3)
pictures.fit(images, np.random.randint(0, 2, 64), batch_size=16 * replicas, epochs=1)
