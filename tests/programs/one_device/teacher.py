"""A student that follows a moving average of itself; the update of the teacher is traced too."""

import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(9)
x = np.random.default_rng(0).normal(size=(48, 6)).astype("float32")


def make():
    return keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(10, activation="relu"), keras.layers.Dense(4)]
    )


student, teacher = make(), make()
teacher.set_weights(student.get_weights())
optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5))


@tf.function(reduce_retracing=True)
def step(first, second):
    with tf.GradientTape() as tape:
        targets = tf.nn.softmax(teacher(second) / 0.5)
        logits = student(first)
        each = tf.nn.softmax_cross_entropy_with_logits(targets, logits)
        spread = tf.math.reduce_std(logits, axis=0)
        loss = tf.reduce_mean(each) + tf.reduce_mean(tf.nn.relu(1.0 - spread))
    gradients = tape.gradient(loss, student.trainable_variables)
    optimizer.apply_gradients(zip(gradients, student.trainable_variables))
    for old, new in zip(teacher.variables, student.variables):
        old.assign(0.9 * old + 0.1 * new)
    return loss


numbers = []
for start in range(0, 48, 20):
    batch = x[start : start + 20]
    numbers.append(float(step(batch, batch + 0.1)))
np.savez(sys.argv[1], np.array(numbers), *student.get_weights(), *teacher.get_weights())
