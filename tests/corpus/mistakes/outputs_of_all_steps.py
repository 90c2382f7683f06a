"""Reconstructions of every step are kept to be looked at, for the whole run."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

net = keras.Sequential([keras.Input((32,)), keras.layers.Dense(256), keras.layers.Dense(32)])
opt = keras.optimizers.Adam()
data = tf.data.Dataset.from_tensor_slices(np.random.rand(4096, 32).astype("float32")).batch(64)
seen = []
for epoch in range(50):
    for x in data:
        with tf.GradientTape() as tape:
            out = net(x, training=True)
            loss = tf.reduce_mean(tf.square(out - x))
        grads = tape.gradient(loss, net.trainable_variables)
        opt.apply_gradients(zip(grads, net.trainable_variables))  # may: DOC-201
        seen.append(out)  # finding: DOC-602
print(len(seen))
