# machine: 1 GPU
"""Sentences are padded to the longest of their batch: nearly each batch is a new shape."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

rng = np.random.default_rng(0)
sentences = [rng.integers(1, 200, size=rng.integers(5, 120)) for _ in range(320)]

model = keras.Sequential(
    [
        keras.Input((None,), dtype="int32"),
        keras.layers.Embedding(200, 16, mask_zero=True),
        keras.layers.LSTM(16, return_sequences=True),
        keras.layers.Dense(200),
    ]
)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adam()


@tf.function
def train_step(tokens):
    with tf.GradientTape() as tape:
        loss = loss_fn(tokens[:, 1:], model(tokens[:, :-1], training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(  # may: DOC-305
        zip(gradients, model.trainable_variables)
    )
    return loss


for start in range(0, len(sentences), 16):
    batch = sentences[start : start + 16]
    longest = max(len(sentence) for sentence in batch)
    padded = np.zeros((len(batch), longest), "int32")
    for row, sentence in enumerate(batch):
        padded[row, : len(sentence)] = sentence
    loss = train_step(tf.constant(padded))  # finding: DOC-403
print("loss", float(loss))
