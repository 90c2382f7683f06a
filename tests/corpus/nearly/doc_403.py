# machine: 1 GPU
"""Made once; numbers as tensors; shapes by a signature; one trace for each model."""

import numpy as np
import tensorflow as tf


def make_step(model, optimizer):
    @tf.function(input_signature=[tf.TensorSpec([None, None, 4]), tf.TensorSpec([], tf.int64)])
    def step(x, number):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - x))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss / tf.cast(number + 1, tf.float32)

    return step


@tf.function(reduce_retracing=True)
def scale(x, training):
    return x * 2.0 if training else x


for width in (8, 16):
    model = tf.keras.Sequential(
        [tf.keras.Input((None, 4)), tf.keras.layers.Dense(width), tf.keras.layers.Dense(4)]
    )
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    step = make_step(model, optimizer)
    for number in range(6):
        x = np.random.rand(32, 5 + number, 4).astype("float32")
        loss = step(scale(tf.constant(x), training=True), tf.constant(number, tf.int64))
    print("width", width, "loss", float(loss))
