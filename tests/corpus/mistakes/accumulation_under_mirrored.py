"""Gradients are accumulated by the optimizer, and there are two replicas."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

config = {"optimizer": {"learning_rate": 1e-3, "accumulate": 4}, "batch": 32}


def make(settings):
    inputs = keras.Input((16,))
    outputs = keras.layers.Dense(4, activation="softmax")(keras.layers.Dense(64)(inputs))
    model = keras.Model(inputs, outputs)
    optimizer = keras.optimizers.AdamW(  # finding: DOC-218
        settings["learning_rate"], gradient_accumulation_steps=settings["accumulate"]
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


x = np.random.rand(2048, 16).astype("float32")
y = np.random.randint(0, 4, 2048)
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = make(config["optimizer"])
model.fit(x, y, batch_size=config["batch"], epochs=2)
