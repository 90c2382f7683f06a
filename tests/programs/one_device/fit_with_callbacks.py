"""Keras's `fit`, with validation data, a schedule and predictions."""

import sys

import keras
import numpy as np

keras.utils.set_random_seed(6)
x = np.random.default_rng(0).normal(size=(90, 8)).astype("float32")
y = np.argmax(x[:, :3], axis=1)
inputs = keras.Input((8,))
hidden = keras.layers.Dropout(0.2)(keras.layers.Dense(16, activation="gelu")(inputs))
model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(hidden))
model.compile(keras.optimizers.AdamW(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (1 + epoch))
history = model.fit(
    x, y, batch_size=32, epochs=2, validation_split=0.2, callbacks=[schedule], verbose=0
)
predictions = model.predict(x[:20], batch_size=16, verbose=0)
np.savez(sys.argv[1], predictions, *history.history.values(), *model.get_weights())
