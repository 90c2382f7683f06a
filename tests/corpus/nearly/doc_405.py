# machine: 1 GPU
"""Strings and Python functions are in the pipeline, which runs on the CPU anyway."""

import numpy as np
import tensorflow as tf

texts = [" ".join(np.random.choice(["a", "b", "c"], 5)) for _ in range(256)]


def length(text):
    return np.float32(len(text))


def prepare(text):
    ids = tf.strings.to_hash_bucket_fast(tf.strings.split(text), 50)
    size = tf.numpy_function(length, [text], tf.float32)
    return tf.ensure_shape(ids, [5]), tf.ensure_shape(size, [])


dataset = tf.data.Dataset.from_tensor_slices(texts)
dataset = dataset.map(prepare, num_parallel_calls=tf.data.AUTOTUNE).batch(64).prefetch(2)

model = tf.keras.Sequential(
    [
        tf.keras.Input((5,), dtype="int64"),
        tf.keras.layers.Embedding(50, 4),
        tf.keras.layers.GlobalAveragePooling1D(),
        tf.keras.layers.Dense(1),
    ]
)
model.compile("adam", "mse")
model.fit(dataset, epochs=1)
