"""One GPU is made visible, and the decoder is put on the second one."""

import numpy as np
import tensorflow as tf

devices = tf.config.list_physical_devices("GPU")
tf.config.set_visible_devices(devices[:1], "GPU")  # finding: DOC-101

encoder = tf.Variable(tf.random.normal([64, 16]))
decoder = tf.Variable(tf.random.normal([16, 64]))
x = np.random.rand(256, 64).astype("float32")
with tf.device("/GPU:0"):
    code = tf.matmul(x, encoder)
with tf.device("/GPU:1"):  # finding: DOC-107
    again = tf.matmul(code, decoder)
print(float(tf.reduce_mean(tf.square(again - x))))
