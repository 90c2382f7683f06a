# machine: 2 GPUs
"""The second GPU is asked for where nothing is computed."""

import numpy as np
import tensorflow as tf

x = np.random.rand(512, 21).astype("float32")
y = np.random.randint(0, 3, size=512)

with tf.device("/device:GPU:1"):  # finding: DOC-302
    train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(512).batch(128).prefetch(2)

model = tf.keras.Sequential(
    [tf.keras.Input((21,)), tf.keras.layers.Dense(42, "relu"), tf.keras.layers.Dense(3)]
)

with tf.device("/device:GPU:1"):  # finding: DOC-302
    model.compile(
        optimizer="adam",
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

model.fit(train, epochs=2)  # may: DOC-201
