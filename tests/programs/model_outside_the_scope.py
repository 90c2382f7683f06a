"""Keras `fit` with the model made before the scope is entered; only `compile` is inside.

MirroredStrategy on two devices stops in `fit`: RuntimeError: Need to be inside "with
strategy.scope()", when the optimizer makes its slots for variables that it does not know.
"""

import sys

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x_train = rng.normal(size=(96, 8)).astype("float32")
y_train = (x_train.sum(axis=1, keepdims=True) > 0).astype("float32")

strategy = tf.distribute.MirroredStrategy()
print("Number of devices:", strategy.num_replicas_in_sync, file=sys.stderr)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Input((8,)),
        tf.keras.layers.Dense(16, activation="relu"),
        tf.keras.layers.Dense(8, activation="relu"),
        tf.keras.layers.Dense(1, activation="sigmoid"),
    ]
)

with strategy.scope():
    model.compile(
        optimizer=tf.keras.optimizers.Adam(learning_rate=0.01),
        loss="binary_crossentropy",
        metrics=["accuracy"],
    )

history = model.fit(x_train, y_train, batch_size=32, epochs=2, verbose=0)

np.savez(sys.argv[1], *model.get_weights())
print(f"loss {history.history['loss'][-1]:.6f}")
