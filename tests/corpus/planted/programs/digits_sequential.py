"""Digit classifier, my first CNN. The digits are drawn with numpy so that it runs offline."""

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

NUM_CLASSES = 10
IMG = 20
EPOCHS = 5
BATCH_SIZE = 64

tf.random.set_seed(7)
rng = np.random.default_rng(7)


def draw_digits(n):
    """Each class has its own pattern of strokes, shifted a bit, plus noise."""
    templates = np.random.default_rng(0).random((NUM_CLASSES, IMG, IMG)) > 0.7
    labels = rng.integers(0, NUM_CLASSES, size=n)
    images = np.zeros((n, IMG, IMG, 1), dtype="uint8")
    for i, label in enumerate(labels):
        shift = rng.integers(-2, 3, size=2)
        glyph = np.roll(templates[label], shift, axis=(0, 1)).astype("float32") * 200
        glyph += rng.normal(0, 20, size=glyph.shape)
        images[i, :, :, 0] = np.clip(glyph, 0, 255)
    return images, labels.astype("int64")


x_train, y_train = draw_digits(3000)
x_test, y_test = draw_digits(600)

# scale to [0, 1]
x_train = x_train.astype("float32") / 255.0
x_test = x_test.astype("float32") / 255.0
print("train:", x_train.shape, "test:", x_test.shape)

model = keras.Sequential(
    [
        keras.Input(shape=(IMG, IMG, 1)),
        layers.Conv2D(16, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(NUM_CLASSES, activation="softmax"),
    ]
)

model.compile(
    optimizer=keras.optimizers.Adam(learning_rate=1e-3),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
model.summary()

history = model.fit(
    x_train,
    y_train,
    batch_size=BATCH_SIZE,
    epochs=EPOCHS,
    validation_split=0.1,
    verbose=2,
)

loss, acc = model.evaluate(x_test, y_test, batch_size=BATCH_SIZE, verbose=0)
print(f"test loss {loss:.3f}, test accuracy {acc:.3f}")

predictions = model.predict(x_test, batch_size=BATCH_SIZE, verbose=0)
wrong = np.flatnonzero(predictions.argmax(axis=1) != y_test)
print("misclassified:", len(wrong), "first few:", wrong[:10])

model.save("digits.keras")
