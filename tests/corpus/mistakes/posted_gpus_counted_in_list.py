# machine: 2 GPUs
"""Measures how training scales, over more GPUs than the machine has."""

import os
import time

os.environ["CUDA_VISIBLE_DEVICES"] = "0,1,2,3"

import numpy as np
import tensorflow as tf

# Pasted from the next cell of the notebook.
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1,2,3"

x = np.random.rand(4096, 16).astype("float32")
y = x.sum(axis=1, keepdims=True)

for num_devices in [1, 2, 4]:
    devices = ["/gpu:" + str(index) for index in range(num_devices)]  # may: DOC-107
    strategy = tf.distribute.MirroredStrategy(devices)  # finding: DOC-107
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((16,)), tf.keras.layers.Dense(256)])
        model.compile(optimizer="adam", loss="mse")
    start = time.time()
    model.fit(x, y, batch_size=256, epochs=2, verbose=0)
    print(strategy.num_replicas_in_sync, "devices:", time.time() - start, "s")
