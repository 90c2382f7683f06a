# machine: 4 GPUs
"""A small search over settings; no batch size of it divides by four."""

import itertools

import keras
import numpy as np
import tensorflow as tf

SPACE = {"units": [32, 64], "lr": [1e-3, 1e-2]}
BATCH = 10  # may: DOC-205


def trials(space):
    for values in itertools.product(*space.values()):
        yield dict(zip(space, values))


def objective(strategy, x, y, *, units, lr):
    keras.backend.clear_session()
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((x.shape[1],)), keras.layers.Dense(units, "relu"), keras.layers.Dense(1)]
        )
        model.compile(optimizer=keras.optimizers.Adam(lr), loss="mse")
    history = model.fit(  # finding: DOC-205
        x, y, batch_size=BATCH, epochs=1, validation_split=0.2, verbose=0
    )
    return history.history["val_loss"][-1]


x = np.random.normal(size=(500, 6)).astype("float32")
y = x[:, 0] * 2
strategy = tf.distribute.MirroredStrategy()
scores = {str(trial): objective(strategy, x, y, **trial) for trial in trials(SPACE)}
print(min(scores, key=scores.get))
