# machine: 2 GPUs
# package: tensorflow-cpu 2.21.0
"""Works, slowly: the wheel that was installed knows no GPU."""

import numpy as np
import tensorflow as tf  # finding: DOC-102

strategy = tf.distribute.MirroredStrategy()  # may: DOC-102

with strategy.scope():
    inputs = tf.keras.Input((32, 32, 3))
    x = tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu")(inputs)
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    outputs = tf.keras.layers.Dense(10, activation="softmax")(x)
    model = tf.keras.Model(inputs, outputs)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

images = np.random.rand(256, 32, 32, 3).astype("float32")
labels = np.random.randint(0, 10, 256)
model.fit(images, labels, batch_size=64 * strategy.num_replicas_in_sync, epochs=2)
