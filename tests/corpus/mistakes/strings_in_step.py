# machine: 1 GPU
"""Text is hashed and looked up in the step itself, on the CPU, instead of in the pipeline."""

import numpy as np
import tensorflow as tf

words = np.array(["red", "green", "blue", "round", "flat", "loud"])
texts = [" ".join(np.random.choice(words, 6)) for _ in range(512)]
labels = np.array([float("red" in text) for text in texts], "float32")

embedding = tf.keras.layers.Embedding(100, 8)
out = tf.keras.layers.Dense(1)
embedding.build((None, None))
out.build((None, 8))
variables = embedding.trainable_variables + out.trainable_variables
optimizer = tf.keras.optimizers.Adam(0.01)


@tf.function
def train_step(batch, target):
    tokens = tf.strings.split(batch).to_tensor("")  # finding: DOC-405
    ids = tf.strings.to_hash_bucket_fast(tokens, 100)  # finding: DOC-405
    with tf.GradientTape() as tape:
        logits = tf.squeeze(out(tf.reduce_mean(embedding(ids), axis=1)), 1)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=target, logits=logits))
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables))
    return loss


dataset = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(64).prefetch(2)
for epoch in range(2):
    for batch, target in dataset:
        loss = train_step(batch, target)
    print("epoch", epoch, "loss", float(loss))
