# machine: 2 GPUs
"""Half of the layers "on" each GPU, by tf.device around add: no computation follows."""

import numpy as np
import tensorflow as tf
from tensorflow.keras.layers import Dense, Input
from tensorflow.keras.models import Sequential

model = Sequential()
model.add(Input((784,)))
with tf.device("/gpu:0"):  # finding: DOC-302
    model.add(Dense(512, activation="relu"))
    model.add(Dense(512, activation="relu"))
with tf.device("/gpu:1"):  # finding: DOC-302
    model.add(Dense(512, activation="relu"))
    model.add(Dense(10, activation="softmax"))

model.compile(loss="sparse_categorical_crossentropy", optimizer="adam", metrics=["accuracy"])

x = np.random.rand(512, 784).astype("float32")
y = np.random.randint(0, 10, 512)
model.fit(x, y, batch_size=128, epochs=2)  # may: DOC-201
