# machine: 2 GPUs
"""A batch of 33 on two GPUs: one has 17 samples, the other 16."""

import numpy as np
import tensorflow as tf

BATCH_SIZE = 33  # may: DOC-205

x = np.random.rand(330, 10).astype("float32")
y = np.random.randint(0, 2, size=330)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(330)
dataset = dataset.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)  # finding: DOC-205

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential()
    model.add(tf.keras.Input((10,)))
    model.add(tf.keras.layers.Dense(16, activation="relu"))
    model.add(tf.keras.layers.Dense(1, activation="sigmoid"))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])

model.fit(dataset, epochs=2)  # may: DOC-205
