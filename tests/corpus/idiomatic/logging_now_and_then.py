# machine: 1 GPU
"""TensorBoard and the console hear of the loss every 100 steps."""

import tempfile
import time

import keras
import numpy as np
import tensorflow as tf

LOG_EVERY = 100

model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(10, "tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(1e-3)
optimizer.build(model.trainable_variables)
loss_fn = keras.losses.MeanAbsoluteError()
writer = tf.summary.create_file_writer(tempfile.mkdtemp())


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


x = np.random.default_rng(0).normal(size=(2048, 5)).astype("float32")
y = np.prod(x[:, :2], axis=1, keepdims=True)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(2048).repeat().batch(64)
dataset = dataset.prefetch(tf.data.AUTOTUNE)

start = time.perf_counter()
with writer.as_default():
    for step, (features, targets) in enumerate(dataset.take(300)):
        loss = train_step(features, targets)
        if step % LOG_EVERY == 0:
            tf.summary.scalar("loss", loss, step=step)
            rate = (step + 1) / (time.perf_counter() - start)
            print(f"step {step}: loss {loss.numpy():.4f}, {rate:.0f} steps/s")
print("last loss", float(loss))
