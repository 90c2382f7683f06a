# machine: 8 GPUs
"""ResNet blocks with two samples on each of eight GPUs."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers as L

PER_REPLICA = 2  # may: DOC-205, DOC-307


def block(x, filters):
    y = L.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    y = L.BatchNormalization()(y)  # finding: DOC-307
    y = L.ReLU()(y)
    y = L.Conv2D(filters, 3, padding="same", use_bias=False)(y)
    y = L.BatchNormalization()(y)  # finding: DOC-307
    return L.ReLU()(L.Add()([x, y]))


def build():
    inputs = tf.keras.Input((48, 48, 3))
    x = L.Conv2D(8, 3, padding="same")(inputs)
    x = block(block(x, 8), 8)
    return tf.keras.Model(inputs, L.Dense(5)(L.GlobalAveragePooling2D()(x)))


strategy = tf.distribute.MirroredStrategy()
batch_size = PER_REPLICA * strategy.num_replicas_in_sync
with strategy.scope():
    model = build()
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))

images = np.random.rand(64, 48, 48, 3).astype("float32")
kinds = np.random.randint(0, 5, 64)
model.fit(images, kinds, batch_size=batch_size, epochs=1)  # may: DOC-205
