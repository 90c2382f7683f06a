# machine: 1 GPU
"""Weights for the classes come from NumPy in double precision."""

import keras
import numpy as np
import tensorflow as tf


def class_weights(labels, num):
    counts = np.bincount(labels, minlength=num)
    return counts.sum() / (num * counts)


def weighted(weights):
    table = tf.constant(weights, dtype=tf.float64)  # may: DOC-309

    def loss(labels, logits):
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.reduce_mean(each * tf.gather(table, labels))  # finding: DOC-309

    return loss


rng = np.random.default_rng(0)
x = rng.normal(size=(512, 10)).astype("float32")
y = np.argmax(x[:, :3], axis=1)
model = keras.Sequential(
    [keras.Input((10,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(3)]
)
optimizer = keras.optimizers.Adam(1e-3)
loss_fn = weighted(class_weights(y, 3))


@tf.function
def step(features, labels):
    with tf.GradientTape() as tape:
        loss = loss_fn(labels, model(features, training=True))
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


for batch in tf.data.Dataset.from_tensor_slices((x, y)).batch(64).prefetch(2):
    loss = step(*batch)
print(float(loss))
