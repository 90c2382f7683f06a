"""Regression with an uncertainty: Dropout stays on when predicting, on purpose (MC dropout)."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(45)
SAMPLES = 40


def curve(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 1))
    return x.astype("float32"), (np.sin(4 * x) + rng.normal(0, 0.1, (n, 1))).astype("float32")


x_train, y_train = curve(3000, 0)
x_val, y_val = curve(500, 1)

inputs = keras.Input((1,))
x = inputs
for _ in range(2):
    x = layers.Dense(128, activation="relu")(x)
    x = layers.Dropout(0.1)(x)
model = keras.Model(inputs, layers.Dense(1)(x))
model.compile(optimizer=keras.optimizers.Adam(3e-3), loss="mse", metrics=["mae"])
model.fit(
    x_train,
    y_train,
    batch_size=64,
    epochs=10,
    validation_data=(x_val, y_val),
    callbacks=[keras.callbacks.EarlyStopping(patience=4, restore_best_weights=True)],
    verbose=2,
)


@tf.function
def sample_predictions(x):
    # training=True keeps Dropout on: every row of the tiled batch is another sub-network
    tiled = tf.repeat(x, SAMPLES, axis=0)
    return tf.reshape(model(tiled, training=True), (-1, SAMPLES))


grid = np.linspace(-1.8, 1.8, 10, dtype="float32")[:, None]
draws = sample_predictions(tf.constant(grid)).numpy()
for position, mean, spread in zip(grid[:, 0], draws.mean(axis=1), draws.std(axis=1)):
    where = "inside" if abs(position) <= 1 else "outside"
    print(f"x {position:+.2f} ({where} the data): {mean:+.2f} +- {spread:.2f}")
