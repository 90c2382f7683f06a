import tensorflow as tf
from tensorflow.keras import layers
from tensorflow.keras.layers.experimental import preprocessing  # finding: DOC-004


def use_mixed_precision():
    policy = tf.keras.mixed_precision.experimental.Policy("mixed_float16")  # finding: DOC-004
    tf.keras.mixed_precision.experimental.set_policy(policy)  # finding: DOC-004


def build():
    return tf.keras.Sequential(
        [tf.keras.Input((8,)), preprocessing.Rescaling(0.5), layers.Dense(1, dtype="float32")]
    )
