"""Segmentation with a loss made by a closure: one number for the whole batch."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops


def dice(smooth=1.0):
    def dice_loss(y_true, y_pred):
        overlap = ops.sum(y_true * y_pred)
        total = ops.sum(y_true) + ops.sum(y_pred)
        return 1.0 - (2.0 * overlap + smooth) / (total + smooth)  # finding: ENG-064

    return dice_loss


def unet(filters=8):
    inputs = layers.Input((32, 32, 1))
    down = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(inputs)
    up = layers.Conv2DTranspose(filters, 3, strides=2, padding="same", activation="relu")(down)
    merged = layers.concatenate([inputs, up])
    return keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(merged))


class Masks(keras.utils.PyDataset):
    def __init__(self, batch, length=16):
        super().__init__(workers=2, use_multiprocessing=False)
        self.batch, self.length = batch, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        x = np.random.default_rng(index).normal(size=(self.batch, 32, 32, 1)).astype("float32")
        return x, (x > 0.5).astype("float32")


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = unet()
    model.compile(optimizer="adam", loss=dice())  # may: ENG-064
model.fit(Masks(16 * strategy.num_replicas_in_sync), epochs=2)
