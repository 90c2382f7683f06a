"""A loop over batches with train_on_batch, made for one GPU, put under a strategy."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

strategy = tf.distribute.MirroredStrategy()
batch_size = 64 * strategy.num_replicas_in_sync

with strategy.scope():
    model = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile(optimizer="adam", loss="mse")

x = np.random.rand(4096, 16).astype("float32")
y = x.sum(axis=1, keepdims=True)
for epoch in range(3):
    order = np.random.permutation(len(x))
    for start in range(0, len(x), batch_size):
        rows = order[start : start + batch_size]
        loss = model.train_on_batch(x[rows], y[rows])  # finding: DOC-211
    print(epoch, loss)
