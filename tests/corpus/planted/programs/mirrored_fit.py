"""model.fit on several devices with MirroredStrategy (two virtual CPUs when there is no GPU)."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
import tensorflow as tf
from tensorflow import keras

if not tf.config.list_physical_devices("GPU"):
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration(), tf.config.LogicalDeviceConfiguration()],
    )

names = [d.name.split(":", 1)[1] for d in tf.config.list_logical_devices("GPU")]
names = names or [d.name.split(":", 1)[1] for d in tf.config.list_logical_devices("CPU")]
strategy = tf.distribute.MirroredStrategy(names)
n_replicas = strategy.num_replicas_in_sync
print(f"{n_replicas} replicas on {names}")

BATCH_PER_REPLICA = 32
BATCH = BATCH_PER_REPLICA * n_replicas
TRAIN, VALID = 1280, 256


def load(n, seed):
    """Textures: class = orientation of the waves."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n)
    grid = np.linspace(0, 12, 24)
    theta = labels * np.pi / 4 + rng.normal(0, 0.15, n)
    wave = np.cos(theta)[:, None, None] * grid[None, :, None] + np.sin(theta)[:, None, None] * grid
    x = np.sin(wave + rng.uniform(0, 6, (n, 1, 1))) + rng.normal(0, 0.5, wave.shape)
    return x[..., None].astype("float32"), labels


def dataset(n, seed, training):
    ds = tf.data.Dataset.from_tensor_slices(load(n, seed)).cache()
    if training:
        ds = ds.shuffle(n)
    return ds.batch(BATCH).prefetch(tf.data.AUTOTUNE)


def build():
    inputs = keras.Input((24, 24, 1))
    x = keras.layers.Conv2D(16, 5, activation="relu")(inputs)
    x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Conv2D(32, 3, activation="relu")(x)
    x = keras.layers.GlobalMaxPooling2D()(x)
    outputs = keras.layers.Dense(4, activation="softmax")(x)
    return keras.Model(inputs, outputs)


train_ds = dataset(TRAIN, 0, training=True)
valid_ds = dataset(VALID, 1, training=False)

with strategy.scope():
    model = build()
    model.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(),
        metrics=["accuracy"],
    )

model.fit(
    train_ds,
    validation_data=valid_ds,
    epochs=4,
    callbacks=[keras.callbacks.ModelCheckpoint("textures.weights.h5", save_weights_only=True)],
    verbose=2,
)
loss, accuracy = model.evaluate(valid_ds, verbose=0)
print(f"accuracy on {VALID} textures: {accuracy:.3f}")
