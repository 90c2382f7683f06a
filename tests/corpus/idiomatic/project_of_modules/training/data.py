import numpy as np
import tensorflow as tf


def dataset(batch_size):
    x = np.random.default_rng(0).normal(size=(1024, 10)).astype("float32")
    y = np.tanh(x[:, :1] * x[:, 1:2])
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1024)
    return data.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
