"""Transfer learning: train a backbone on one task, freeze it, train a head, then fine-tune."""

import numpy as np
import keras
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(10)
SIZE = 24
BATCH = 32


def patterns(n, classes, seed):
    """Class k: k+1 bright dots on a noisy background."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    x = rng.normal(60, 15, (n, SIZE, SIZE, 1))
    for i, k in enumerate(y):
        for _ in range(k + 1):
            r, c = rng.integers(2, SIZE - 4, 2)
            x[i, r : r + 3, c : c + 3] += 120
    return np.clip(x, 0, 255).astype("float32"), y.astype("int64")


def to_ds(x, y, training):
    ds = tf.data.Dataset.from_tensor_slices((x, y))
    if training:
        ds = ds.shuffle(len(x))
    return ds.batch(BATCH).prefetch(tf.data.AUTOTUNE)


def make_backbone():
    return keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 1)),
            layers.Rescaling(1.0 / 127.5, offset=-1),
            layers.Conv2D(16, 3, activation="relu"),
            layers.BatchNormalization(momentum=0.9),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.BatchNormalization(momentum=0.9),
            layers.GlobalAveragePooling2D(),
        ],
        name="backbone",
    )


def compiled(model, lr):
    model.compile(
        optimizer=keras.optimizers.Adam(lr),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


# 1. the "big" task
source_train = to_ds(*patterns(1600, 5, 0), training=True)
source_val = to_ds(*patterns(320, 5, 1), training=False)
backbone = make_backbone()
source = compiled(keras.Sequential([backbone, layers.Dense(5)]), 3e-3)
source.fit(source_train, validation_data=source_val, epochs=6, verbose=2)

# 2. the small task: a new head on the frozen backbone
target_train = to_ds(*patterns(480, 3, 2), training=True)
target_val = to_ds(*patterns(240, 3, 3), training=False)
backbone.trainable = False
inputs = keras.Input((SIZE, SIZE, 1))
features = backbone(inputs, training=False)
features = layers.Dropout(0.2)(features)
outputs = layers.Dense(3)(features)
model = compiled(keras.Model(inputs, outputs), 1e-2)
model.fit(target_train, validation_data=target_val, epochs=4, verbose=2)
print("trainable while frozen:", len(model.trainable_variables))

# 3. fine-tuning with a small learning rate; compile again after changing trainable
backbone.trainable = True
model = compiled(model, 3e-4)
model.fit(target_train, validation_data=target_val, epochs=2, verbose=2)
loss, accuracy = model.evaluate(target_val, verbose=0)
print(f"fine-tuned: loss {loss:.3f} accuracy {accuracy:.3f}")
model.save("dots.keras")
