# machine: 2 GPUs
"""Devices that are there, in several spellings, and one that is asked for first."""

import numpy as np
import tensorflow as tf

x = tf.constant(np.random.rand(128, 32).astype("float32"))
last = len(tf.config.list_logical_devices("GPU")) - 1

with tf.device("/GPU:0"):
    a = tf.linalg.matmul(x, x, transpose_b=True)
with tf.device("/device:gpu:1"):
    b = tf.linalg.matmul(x, x, transpose_a=True)
with tf.device("CPU:0"):
    c = tf.reduce_sum(x)
if last >= 7:
    with tf.device("/GPU:7"):
        d = tf.square(x)
print(a.shape, b.shape, float(c))
