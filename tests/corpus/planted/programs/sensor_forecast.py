"""Forecast the next value of a temperature sensor from the last two days (hourly)."""

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(17)

HISTORY = 48
BATCH = 64
EPOCHS = 5
HOURS = 5000


def record_sensor():
    """Temperature, humidity and wind of a made-up weather station."""
    rng = np.random.default_rng(17)
    t = np.arange(HOURS)
    temp = 12 + 8 * np.sin(2 * np.pi * t / 24) + 6 * np.sin(2 * np.pi * t / 1000)
    temp += np.cumsum(rng.normal(0, 0.1, HOURS))
    humidity = 60 - 1.5 * temp + rng.normal(0, 3, HOURS)
    wind = np.abs(rng.normal(3, 2, HOURS))
    return np.stack([temp, humidity, wind], axis=1).astype("float32")


data = record_sensor()
train_end = int(0.7 * HOURS)
val_end = int(0.9 * HOURS)

mean = data[:train_end].mean(axis=0)
std = data[:train_end].std(axis=0)
data = (data - mean) / std
target = data[:, 0]


def windows(start, end, shuffle):
    """Windows of HISTORY hours; the target is the temperature of the hour after the window."""
    return keras.utils.timeseries_dataset_from_array(
        data=data[start : end - HISTORY],
        targets=target[start + HISTORY : end],
        sequence_length=HISTORY,
        batch_size=BATCH,
        shuffle=shuffle,
        seed=1,
    ).prefetch(tf.data.AUTOTUNE)


train_ds = windows(0, train_end, shuffle=True)
val_ds = windows(train_end, val_end, shuffle=False)
test_ds = windows(val_end, HOURS, shuffle=False)

inputs = keras.Input((HISTORY, 3))
x = layers.Conv1D(32, 5, activation="relu")(inputs)
x = layers.LSTM(32)(x)
x = layers.Dropout(0.1)(x)
outputs = layers.Dense(1)(x)
model = keras.Model(inputs, outputs)

model.compile(
    optimizer=keras.optimizers.Adam(1e-3, clipnorm=1.0),
    loss="mse",
    metrics=["mae"],
)

callbacks = [
    keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),
    keras.callbacks.TerminateOnNaN(),
]
history = model.fit(
    train_ds,
    validation_data=val_ds,
    epochs=EPOCHS,
    callbacks=callbacks,
    verbose=2,
)

mse, mae = model.evaluate(test_ds, verbose=0)
print(f"test mae: {mae * std[0]:.2f} degrees")

naive = np.abs(np.diff(target[val_end:])).mean() * std[0]
print(f"naive forecast (same as the last hour): {naive:.2f} degrees")
model.save("forecast.keras")
