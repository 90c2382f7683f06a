# machine: 2 GPUs
"""A dice loss that returns one number for the batch, under fit and two GPUs."""

import keras
import numpy as np
import tensorflow as tf
from keras import ops


def dice_loss(y_true, y_pred, smooth=1.0):  # may: ENG-064
    intersection = ops.sum(y_true * y_pred)
    total = ops.sum(y_true) + ops.sum(y_pred)
    return 1.0 - (2.0 * intersection + smooth) / (total + smooth)  # finding: ENG-064


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((24, 24, 1)),
            keras.layers.Conv2D(8, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(1, 1, activation="sigmoid"),
        ]
    )
    model.compile(optimizer="adam", loss=dice_loss)  # may: ENG-064

images = np.random.rand(256, 24, 24, 1).astype("float32")
masks = (images > 0.5).astype("float32")
model.fit(images, masks, batch_size=64, epochs=2)
