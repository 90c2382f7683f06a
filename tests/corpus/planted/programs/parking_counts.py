"""Cars per hour at a parking lot: Poisson regression. Counts and outputs are never negative."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(15)
HOURS = 8000
BATCH = 64


def visits(seed):
    rng = np.random.default_rng(seed)
    hour = np.arange(HOURS) % 24
    weekday = (np.arange(HOURS) // 24) % 7
    rain = rng.random(HOURS) < 0.2
    rate = 4 + 14 * np.exp(-((hour - 11) ** 2) / 10) + 18 * np.exp(-((hour - 17) ** 2) / 8)
    rate = rate * np.where(weekday >= 5, 0.5, 1.0) * np.where(rain, 0.7, 1.0)
    return hour, weekday, rain, rng.poisson(rate)


hour, weekday, rain, cars = visits(0)
angle = 2 * np.pi * hour / 24
features = np.concatenate(
    [
        np.stack([np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle)], axis=1),
        np.eye(7)[weekday],
        rain[:, None],
    ],
    axis=1,
).astype("float32")
cars = cars.astype("float32")[:, None]

# the last weeks are for validation: no shuffling across time
cut = HOURS * 4 // 5
train = tf.data.Dataset.from_tensor_slices((features[:cut], cars[:cut]))
train = train.cache().shuffle(cut).batch(BATCH).prefetch(tf.data.AUTOTUNE)
valid = tf.data.Dataset.from_tensor_slices((features[cut:], cars[cut:])).batch(256).cache()

model = keras.Sequential(
    [
        keras.Input((features.shape[1],)),
        layers.Dense(64, activation="relu"),
        layers.Dense(64, activation="relu"),
        layers.Dense(1, activation="softplus"),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(5e-3, 1000)),
    loss=keras.losses.Poisson(),
    metrics=[keras.metrics.MeanAbsoluteError(name="mae")],
)
model.fit(train, validation_data=valid, epochs=8, verbose=2)

always_mean = np.abs(cars[cut:] - cars[:cut].mean()).mean()
print(f"always the mean: {always_mean:.2f} cars, model:", model.evaluate(valid, verbose=0)[1])
for h in (3, 11, 17):
    row = features[(hour == h) & (weekday == 2) & ~rain][:1]
    print(f"Wednesday {h}:00, dry: {float(model(row, training=False)[0, 0]):.1f} cars")
