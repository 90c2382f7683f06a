# machine: 1 GPU
"""A frozen base, then some of it thawed, compiled again, with a small rate."""

import keras
import numpy as np
from keras import layers


def make_base():
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(8, 3, strides=2, activation="relu")(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.Conv2D(16, 3, strides=2, activation="relu")(x)
    return keras.Model(inputs, x, name="base")


base = make_base()
base.trainable = False

inputs = keras.Input((32, 32, 3))
x = layers.Rescaling(1.0 / 127.5, offset=-1)(inputs)
x = base(x, training=False)
x = layers.GlobalAveragePooling2D()(x)
outputs = layers.Dense(3)(layers.Dropout(0.2)(x))
model = keras.Model(inputs, outputs)

loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
images = np.random.default_rng(0).integers(0, 255, size=(256, 32, 32, 3)).astype("float32")
kinds = np.random.default_rng(1).integers(0, 3, size=256)
model.fit(images, kinds, batch_size=64, epochs=1)

base.trainable = True
for layer in base.layers[:-2]:
    layer.trainable = False
model.compile(keras.optimizers.Adam(1e-5), loss, metrics=["accuracy"])
model.fit(images, kinds, batch_size=64, epochs=1)
print("trained", len(model.trainable_weights), "of", len(model.weights), "weights")
