# Denoising autoencoder for noisy sensor pictures
# Keras 3, sequential encoder + decoder, noise added on the fly
import keras
import numpy as np
import tensorflow as tf
from keras.layers import Conv2D, Conv2DTranspose, Input, MaxPooling2D

keras.utils.set_random_seed(2024)

SIZE = 32
BATCH = 32
NUM_TRAIN = 1200
NUM_VALID = 200
NOISE = 0.6


def stripes(count, seed):
    rng = np.random.default_rng(seed)
    x = np.linspace(0, 1, SIZE)
    freq = rng.uniform(1, 4, (count, 1, 1))
    phase = rng.uniform(0, 6.28, (count, 1, 1))
    tilt = rng.uniform(-1, 1, (count, 1, 1))
    waves = np.sin(6.28 * freq * (x[None, None, :] + tilt * x[None, :, None]) + phase)
    return ((waves > 0) * 255).astype("uint8")[..., None]


def add_noise(clean):
    clean = tf.cast(clean, tf.float32) / 255.0
    noisy = clean + NOISE * tf.random.normal(tf.shape(clean))
    return tf.clip_by_value(noisy, 0.0, 1.0), clean


def pipeline(images, training):
    ds = tf.data.Dataset.from_tensor_slices(images)
    if training:
        ds = ds.shuffle(len(images))
    ds = ds.batch(BATCH)
    ds = ds.map(add_noise, num_parallel_calls=tf.data.AUTOTUNE)
    return ds.prefetch(tf.data.AUTOTUNE)


train_images = stripes(NUM_TRAIN, 0)
valid_images = stripes(NUM_VALID, 1)
train_ds = pipeline(train_images, training=True)
valid_ds = pipeline(valid_images, training=False)

autoencoder = keras.Sequential(
    [
        Input((SIZE, SIZE, 1)),
        Conv2D(16, 3, activation="relu", padding="same"),
        MaxPooling2D(2, padding="same"),
        Conv2D(24, 3, activation="relu", padding="same"),
        MaxPooling2D(2, padding="same"),
        Conv2DTranspose(24, 3, strides=2, activation="relu", padding="same"),
        Conv2DTranspose(16, 3, strides=2, activation="relu", padding="same"),
        Conv2D(1, 3, activation="sigmoid", padding="same"),
    ],
    name="denoiser",
)
autoencoder.compile(
    optimizer=keras.optimizers.Adam(2e-3), loss="binary_crossentropy", metrics=["mae"]
)
autoencoder.summary()

log = keras.callbacks.CSVLogger("denoise.csv")
history = autoencoder.fit(train_ds, validation_data=valid_ds, epochs=5, callbacks=[log], verbose=2)

noisy, clean = next(iter(valid_ds))
restored = autoencoder.predict(noisy, verbose=0)
before = float(tf.reduce_mean(tf.abs(noisy - clean)))
after = float(tf.reduce_mean(tf.abs(restored - clean)))
print(f"mean error before {before:.3f}, after {after:.3f}")
autoencoder.save("denoiser.keras")
