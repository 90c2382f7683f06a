"""Scores row by row, with predict."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    net = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64), keras.layers.Dense(1)])
    net.compile("adam", "mse")
x = np.random.rand(2048, 32).astype("float32")
net.fit(x, x[:, :1], batch_size=64)
scores = []
for index, row in enumerate(x):
    one = np.expand_dims(row, 0)
    scores.append((net.predict(one)[0, 0], index))  # finding: DOC-408
print(max(scores))
