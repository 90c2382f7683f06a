# machine: 2 GPUs
"""Multiplies two matrices on a GPU, to see that it works; the training takes one GPU alone."""

import numpy as np
import tensorflow as tf

tf.debugging.set_log_device_placement(True)

with tf.device("/GPU:0"):
    a = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    b = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    print(tf.matmul(a, b))

x = np.random.rand(8192, 32).astype("float32")
y = np.random.randint(10, size=(8192,))

model = tf.keras.models.Sequential(
    [
        tf.keras.Input((32,)),
        tf.keras.layers.Dense(512, activation="relu"),
        tf.keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer="adam", loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
)
model.fit(x, y, batch_size=512, epochs=5)  # finding: DOC-201
