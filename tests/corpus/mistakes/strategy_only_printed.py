# machine: 2 GPUs
"""The strategy is made, its number of devices printed, and that was it."""

import numpy as np
import tensorflow as tf

mirrored_strategy = tf.distribute.MirroredStrategy()  # finding: DOC-202
print("Number of devices:", mirrored_strategy.num_replicas_in_sync)

x = np.random.rand(512, 6).astype("float32")
y = x.prod(axis=1)

model = tf.keras.models.Sequential(
    [
        tf.keras.layers.Input((6,)),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(1),
    ]
)
model.compile(optimizer="adam", loss="mse")
model.fit(  # may: DOC-201
    x, y, batch_size=64 * mirrored_strategy.num_replicas_in_sync, epochs=3
)
