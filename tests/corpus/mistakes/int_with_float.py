# machine: 1 GPU
"""Labels of integers meet predictions of floats; the graph cannot be built."""

import numpy as np
import tensorflow as tf

model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.01)

counts = np.random.randint(0, 20, size=(256, 6))
totals = counts.sum(axis=1, keepdims=True)


@tf.function
def train_step(x, y):
    x = tf.cast(x, tf.float32)
    y = tf.cast(y, tf.int32)
    with tf.GradientTape() as tape:
        prediction = model(x, training=True)
        loss = tf.reduce_mean(tf.square(prediction - y))  # finding: DOC-309
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


dataset = tf.data.Dataset.from_tensor_slices((counts, totals)).batch(64).prefetch(2)
for x, y in dataset:
    loss = train_step(x, y)
print("loss", float(loss))
