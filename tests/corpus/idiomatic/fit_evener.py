# machine: 2 GPUs
"""Keras fit under evener's strategy; any batch size will do."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import evener

strategy = evener.Strategy()

with strategy.scope():
    inputs = keras.Input((16,))
    x = layers.Dense(64, activation="gelu")(inputs)
    x = layers.LayerNormalization()(x)
    outputs = layers.Dense(3)(x)
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-3, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=4,
    )

features = np.random.default_rng(0).normal(size=(1200, 16)).astype("float32")
kinds = np.argmax(features[:, :3], axis=1)
dataset = tf.data.Dataset.from_tensor_slices((features, kinds)).shuffle(1200)
model.fit(dataset.batch(128).prefetch(tf.data.AUTOTUNE), epochs=2)
