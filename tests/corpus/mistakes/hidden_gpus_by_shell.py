# machine: 2 GPUs
# environment: CUDA_VISIBLE_DEVICES=
"""The shell that starts it still has CUDA_VISIBLE_DEVICES set to nothing."""

import numpy as np
import tensorflow as tf  # finding: DOC-101

strategy = tf.distribute.MirroredStrategy()  # may: DOC-101

x = np.random.rand(256, 16).astype(np.float32)
y = (x.mean(axis=1) > 0.5).astype(np.float32)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((16,)),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])

model.fit(x, y, batch_size=32 * strategy.num_replicas_in_sync, epochs=3)
model.save("classifier.keras")
