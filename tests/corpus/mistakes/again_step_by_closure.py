# machine: 1 GPU
"""A curriculum: for every stage and every epoch a new compiled closure."""

import keras
import numpy as np
import tensorflow as tf


def compiled(fn, *, jit=False):
    return tf.function(fn, jit_compile=jit)  # may: DOC-403


def step_for(model, optimizer, weight):
    def step(x):
        with tf.GradientTape() as tape:
            loss = weight * tf.reduce_mean(tf.square(model(x, training=True) - x))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    return step


model = keras.Sequential(
    [keras.Input((12,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(12)]
)
optimizer = keras.optimizers.SGD(0.01)
optimizer.build(model.trainable_variables)
x = np.random.normal(size=(512, 12)).astype("float32")
data = tf.data.Dataset.from_tensor_slices(x).batch(64).prefetch(2)
for epoch in range(20):
    train_step = compiled(step_for(model, optimizer, weight=1.0 / (1 + epoch)))  # finding: DOC-403
    for batch in data:
        loss = train_step(batch)
    print(epoch, float(loss))
