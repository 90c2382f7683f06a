"""Keras `fit` with batches of 33 samples, and 7 in the last one.

MirroredStrategy on two devices stops in `fit`: InvalidArgumentError: Inputs to operation AddN must
have the same size and shape. Input 0: [17,12] != input 1: [16,12].
"""

import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(106, 12)).astype("float32")
y = rng.integers(0, 4, size=106)
class_weight = {0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0}

dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(106, seed=3).batch(33)

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((12,)),
            keras.layers.Dense(24, activation="relu", kernel_regularizer="l2"),
            keras.layers.Dense(4, activation="softmax"),
        ]
    )
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])

model.fit(dataset, epochs=2, class_weight=class_weight, verbose=0)
loss, accuracy = model.evaluate(x, y, batch_size=33, verbose=0)

np.savez(sys.argv[1], *model.get_weights())
print(f"loss {loss:.6f} accuracy {accuracy:.6f}")
