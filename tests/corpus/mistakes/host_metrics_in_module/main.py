# machine: 1 GPU
"""The loop is short; the meter that it calls asks the GPU for a number each time."""

import keras
import numpy as np
import tensorflow as tf
from meter import Meter

model = keras.Sequential(
    [keras.Input((9,)), keras.layers.Dense(27, activation="relu"), keras.layers.Dense(9)]
)
optimizer = keras.optimizers.Adam()


@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.abs(model(x, training=True) - x))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


data = np.random.rand(1024, 9).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(data).batch(64).prefetch(2)
for epoch in range(2):
    meter = Meter()
    for batch in dataset:
        meter.update(train_step(batch))  # may: DOC-402
    print("epoch", epoch, meter)
