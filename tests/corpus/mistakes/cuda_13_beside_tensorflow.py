# machine: 2 GPUs
# package: tensorflow 2.21.0
# package: nvidia-cudnn-cu13 9.0
# package: nvidia-cublas-cu13 13.0
"""A newer CUDA was brought by another package; TensorFlow finds none of its libraries."""

import keras
import numpy as np
import tensorflow as tf  # finding: DOC-103

strategy = tf.distribute.MirroredStrategy()  # may: DOC-103
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="gelu"),
            keras.layers.Dense(64),
        ]
    )
    model.compile(optimizer="adamw", loss="mse")

x = np.random.normal(size=(512, 64)).astype("float32")
model.fit(x, x, batch_size=128, epochs=2)
