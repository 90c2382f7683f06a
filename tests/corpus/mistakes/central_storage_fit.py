# machine: 2 GPUs
"""Central storage, chosen for its name: all variables and updates are on the CPU."""

import keras
import numpy as np
import tensorflow as tf

strategy = tf.distribute.experimental.CentralStorageStrategy()  # finding: DOC-210

with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((200,)),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(20),
        ]
    )
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )

x = np.random.normal(size=(1024, 200)).astype("float32")
y = np.random.randint(0, 20, 1024)
model.fit(x, y, batch_size=64 * strategy.num_replicas_in_sync, epochs=2)  # may: DOC-210
