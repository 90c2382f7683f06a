# machine: 2 GPUs
"""A custom loss that keeps the axis of the samples."""

import keras
import numpy as np
import tensorflow as tf
from keras import ops


def dice_loss(y_true, y_pred, smooth=1.0):
    axes = [1, 2, 3]
    intersection = ops.sum(y_true * y_pred, axis=axes)
    total = ops.sum(y_true, axis=axes) + ops.sum(y_pred, axis=axes)
    return 1.0 - (2.0 * intersection + smooth) / (total + smooth)


def dice(y_true, y_pred):
    # A metric may be one number.
    return 1.0 - ops.mean(dice_loss(y_true, y_pred, smooth=0.0))


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential(
        [keras.Input((16, 16, 1)), keras.layers.Conv2D(1, 3, padding="same", activation="sigmoid")]
    )
    model.compile("adam", loss=dice_loss, metrics=[dice])
images = np.random.rand(256, 16, 16, 1).astype("float32")
batch_size = 64 * strategy.num_replicas_in_sync
model.fit(images, (images > 0.5).astype("float32"), batch_size=batch_size, epochs=1)
