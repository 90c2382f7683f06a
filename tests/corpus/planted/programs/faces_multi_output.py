"""Two answers from one picture: the age (regression) and the mood (4 classes)."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import Input, Model, callbacks, layers, losses, metrics, optimizers, utils

utils.set_random_seed(31)

SIDE = 28
MOODS = ["neutral", "happy", "sad", "angry"]
BATCH = 40
EPOCHS = 5


def sketch_faces(n, seed):
    """A round head, a mouth that bends with the mood, wrinkles that come with age."""
    rng = np.random.default_rng(seed)
    age = rng.uniform(5, 95, n)
    mood = rng.integers(0, len(MOODS), n)
    yy, xx = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    bend = np.array([0.0, 0.8, -0.8, 2.0])[mood][:, None, None]
    head = (yy**2 + xx**2 < 0.9).astype(float)[None]
    mouth = np.exp(-(((yy - 0.3 + bend * (xx**2 - 0.1)) * 9) ** 2)) * (abs(xx) < 0.5)
    wrinkles = (age / 100)[:, None, None] * (np.sin(20 * yy) ** 2 * (yy < -0.2))
    faces = 0.5 * head + 0.5 * mouth - 0.5 * wrinkles + rng.normal(0, 0.1, (n, SIDE, SIDE))
    return faces[..., None].astype("float32"), (age / 100).astype("float32"), mood.astype("int32")


def as_dataset(n, seed, training=False):
    faces, age, mood = sketch_faces(n, seed)
    ds = tf.data.Dataset.from_tensor_slices((faces, {"age": age[:, None], "mood": mood}))
    if training:
        ds = ds.shuffle(n)
    return ds.batch(BATCH).prefetch(tf.data.AUTOTUNE)


train_ds = as_dataset(2000, 0, training=True)
val_ds = as_dataset(400, 1)

image = Input((SIDE, SIDE, 1), name="image")
x = layers.Conv2D(16, 3, activation="relu")(image)
x = layers.MaxPooling2D()(x)
x = layers.Conv2D(32, 3, activation="relu")(x)
x = layers.MaxPooling2D()(x)
x = layers.Flatten()(x)
shared = layers.Dense(64, activation="relu")(x)
age_out = layers.Dense(1, name="age")(layers.Dense(32, activation="relu")(shared))
mood_out = layers.Dense(len(MOODS), activation="softmax", name="mood")(shared)
model = Model(image, {"age": age_out, "mood": mood_out})

model.compile(
    optimizer=optimizers.Adam(1e-3),
    loss={"age": losses.MeanSquaredError(), "mood": losses.SparseCategoricalCrossentropy()},
    loss_weights={"age": 5.0, "mood": 1.0},
    metrics={"age": [metrics.MeanAbsoluteError()], "mood": ["accuracy"]},
)

model.fit(
    train_ds,
    validation_data=val_ds,
    epochs=EPOCHS,
    callbacks=[callbacks.BackupAndRestore("backup")],
    verbose=2,
)

answers = model.predict(val_ds, verbose=0)
_, true_age, true_mood = sketch_faces(400, 1)
print("age error in years:", 100 * np.abs(answers["age"][:, 0] - true_age).mean())
print("mood accuracy:", (answers["mood"].argmax(1) == true_mood).mean())
