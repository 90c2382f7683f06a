# machine: 2 GPUs
"""An ensemble: one model for each GPU, and the predictions of all are averaged."""

import numpy as np
import tensorflow as tf


def make_model(seed):
    tf.keras.utils.set_random_seed(seed)
    return tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])


@tf.function(reduce_retracing=True)
def descend(model, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    for variable, gradient in zip(
        model.trainable_variables, tape.gradient(loss, model.trainable_variables)
    ):
        variable.assign_sub(0.1 * gradient)


x = tf.constant(np.random.rand(256, 4).astype("float32"))
y = x[:, :1]
members = []
for i, gpu in enumerate(tf.config.list_logical_devices("GPU")):
    with tf.device(gpu.name):
        member = make_model(i)
        for _ in range(20):
            descend(member, x, y)
        members.append(member)

if members:
    mean = tf.add_n([member(x) for member in members]) / len(members)
    print("error of the ensemble", float(tf.reduce_mean(abs(mean - y))))
