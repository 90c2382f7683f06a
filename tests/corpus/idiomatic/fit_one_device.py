# machine: 1 GPU
"""Keras fit on one device: the plain case."""

import keras
import numpy as np
from keras import layers

NUM_CLASSES = 10

rng = np.random.default_rng(0)
x_train = rng.random((1024, 28, 28, 1), dtype="float32")
y_train = rng.integers(0, NUM_CLASSES, size=1024)

model = keras.Sequential(
    [
        keras.Input((28, 28, 1)),
        layers.Conv2D(16, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.BatchNormalization(),
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(NUM_CLASSES),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(x_train, y_train, batch_size=128, epochs=2, validation_split=0.1)
print("last loss", history.history["loss"][-1])
model.save("mnist.keras")
