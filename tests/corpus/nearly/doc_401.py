# machine: 1 GPU
"""Parallel map and prefetch, in another function than the batches are made."""

import numpy as np
import tensorflow as tf
from tensorflow.data import AUTOTUNE


def augment(image):
    image = tf.image.random_flip_left_right(image)
    return image, tf.reduce_mean(image)


def pipeline(images):
    options = {"num_parallel_calls": AUTOTUNE, "deterministic": False}
    dataset = tf.data.Dataset.from_tensor_slices(images)
    return dataset.shuffle(256).map(augment, **options).batch(64)


def ready(dataset):
    return dataset.prefetch(AUTOTUNE)


images = np.random.rand(256, 16, 16, 1).astype("float32")
# One pass over a few file names needs no threads.
names = tf.data.Dataset.from_tensor_slices(["a", "b"]).map(tf.strings.upper)
print([name.numpy() for name in names])

model = tf.keras.Sequential(
    [tf.keras.Input((16, 16, 1)), tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)]
)
model.compile("adam", "mse")
model.fit(ready(pipeline(images)), epochs=1)
