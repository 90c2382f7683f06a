# machine: 2 GPUs
"""The batch of one GPU is given to fit, which wants the batch of all."""

import numpy as np
import tensorflow as tf

BATCH_SIZE_PER_REPLICA = 64
EPOCHS = 2

strategy = tf.distribute.MirroredStrategy()

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((40,)),
            tf.keras.layers.Dense(80, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.SGD(0.1),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(),
    )

x = np.random.rand(1024, 40)
y = np.random.randint(0, 10, 1024)
model.fit(x, y, batch_size=BATCH_SIZE_PER_REPLICA, epochs=EPOCHS)  # finding: DOC-206
