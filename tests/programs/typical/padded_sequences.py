"""Sequences in padded batches, with masks, in a plain step."""

import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(5)
x = np.random.default_rng(0).normal(size=(60, 8)).astype("float32")
y = np.sin(x[:, :1])
lengths = np.random.default_rng(1).integers(2, 7, size=60)
sequences = [np.random.default_rng(i).integers(1, 20, size=n) for i, n in enumerate(lengths)]
targets = np.array([[float(s.sum() % 7) / 7] for s in sequences], "float32")
model = keras.Sequential(
    [
        keras.layers.Embedding(20, 8, mask_zero=True),
        keras.layers.GRU(8),
        keras.layers.Dense(1),
    ]
)
optimizer = keras.optimizers.SGD(0.05)
data = tf.data.Dataset.from_generator(
    lambda: zip(sequences, targets),
    output_signature=(tf.TensorSpec([None], tf.int32), tf.TensorSpec([1], tf.float32)),
).padded_batch(16)


def train_step(tokens, wanted):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(tokens, training=True) - wanted))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


seen = []
for epoch in range(4):
    for tokens, wanted in data:
        seen.append(float(train_step(tokens, wanted)))

np.savez(sys.argv[1], np.array(seen), *model.get_weights())
