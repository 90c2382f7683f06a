"""Flower pictures -> 5 species. tf.data pipeline with augmentation, functional Keras model."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

IMAGE_SIZE = 32
BATCH = 32
EPOCHS = 4
SPECIES = ["daisy", "dandelion", "roses", "sunflowers", "tulips"]
AUTOTUNE = tf.data.AUTOTUNE

keras.utils.set_random_seed(1234)


def fake_flowers(count, seed):
    rng = np.random.default_rng(seed)
    species = np.sort(rng.integers(0, len(SPECIES), count))  # one folder after the other
    yy, xx = np.mgrid[0:IMAGE_SIZE, 0:IMAGE_SIZE] / IMAGE_SIZE - 0.5
    radius = np.sqrt(xx**2 + yy**2)
    angle = np.arctan2(yy, xx)
    pictures = []
    for s in species:
        petals = np.cos(angle * (s + 3) + rng.uniform(0, 6)) * 0.5 + 0.5
        flower = petals * (radius < rng.uniform(0.3, 0.45))
        color = np.array(
            [[250, 240, 200], [250, 220, 30], [210, 30, 60], [240, 170, 10], [200, 60, 180]]
        )[s]
        picture = flower[..., None] * color + rng.uniform(0, 60, (IMAGE_SIZE, IMAGE_SIZE, 3))
        pictures.append(np.clip(picture, 0, 255))
    return np.stack(pictures).astype(np.uint8), species.astype(np.int32)


train_images, train_labels = fake_flowers(1600, seed=1)
val_images, val_labels = fake_flowers(320, seed=2)


def to_float(image, label):
    return tf.cast(image, tf.float32) / 255.0, label


def augment(image, label):
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_brightness(image, 0.1)
    return image, label


train_ds = tf.data.Dataset.from_tensor_slices((train_images, train_labels))
train_ds = train_ds.shuffle(len(train_images)).map(to_float, num_parallel_calls=AUTOTUNE)
train_ds = train_ds.map(augment, num_parallel_calls=AUTOTUNE)
train_ds = train_ds.batch(BATCH).prefetch(AUTOTUNE)

val_ds = tf.data.Dataset.from_tensor_slices((val_images, val_labels))
val_ds = val_ds.map(to_float, num_parallel_calls=AUTOTUNE)
val_ds = val_ds.batch(BATCH).prefetch(AUTOTUNE)


def block(x, filters):
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization(momentum=0.9)(x)
    x = layers.Activation("relu")(x)
    return layers.MaxPooling2D()(x)


inputs = keras.Input(shape=(IMAGE_SIZE, IMAGE_SIZE, 3))
x = block(inputs, 16)
x = block(x, 32)
x = block(x, 48)
x = layers.GlobalAveragePooling2D()(x)
x = layers.Dropout(0.2)(x)
outputs = layers.Dense(len(SPECIES))(x)
model = keras.Model(inputs, outputs)

model.compile(
    optimizer=keras.optimizers.Adam(2e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)

callbacks = [
    keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=2),
    keras.callbacks.ModelCheckpoint("flowers_best.keras", save_best_only=True),
]
history = model.fit(
    train_ds,
    validation_data=val_ds,
    epochs=EPOCHS,
    callbacks=callbacks,
    verbose=2,
)
print("best val accuracy:", max(history.history["val_accuracy"]))

probabilities = keras.ops.softmax(model.predict(val_ds, verbose=0))
print("example:", [f"{p:.2f}" for p in probabilities[0]], "is", SPECIES[val_labels[0]])
