"""Cell segmentation with a small U-Net, Dice + BCE loss."""

from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
from tensorflow.keras import backend as K

CONFIG = {"size": 48, "batch": 16, "epochs": 4, "lr": 2e-3, "train": 480, "val": 96}
keras.utils.set_random_seed(8)


def make_cells(n, size, seed):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[0:size, 0:size]
    images = rng.normal(90, 25, (n, size, size))
    masks = np.zeros((n, size, size), np.uint8)
    for i in range(n):
        for _ in range(rng.integers(2, 5)):
            cy, cx = rng.uniform(6, size - 6, 2)
            r = rng.uniform(4, 8)
            cell = (yy - cy) ** 2 + (xx - cx) ** 2 < r**2
            images[i][cell] += rng.uniform(60, 110)
            masks[i][cell] = 1
    return np.clip(images, 0, 255).astype(np.uint8)[..., None], masks[..., None]


def preprocess(image, mask):
    return tf.cast(image, tf.float32) / 255.0, tf.cast(mask, tf.float32)


def flip(image, mask):
    if tf.random.uniform(()) > 0.5:
        image, mask = tf.image.flip_left_right(image), tf.image.flip_left_right(mask)
    return image, mask


def get_dataset(split, seed):
    images, masks = make_cells(CONFIG[split], CONFIG["size"], seed)
    ds = tf.data.Dataset.from_tensor_slices((images, masks))
    ds = ds.map(preprocess, num_parallel_calls=tf.data.AUTOTUNE).cache()
    if split == "train":
        ds = ds.shuffle(CONFIG[split]).map(flip, num_parallel_calls=tf.data.AUTOTUNE)
    return ds.batch(CONFIG["batch"]).prefetch(tf.data.AUTOTUNE)


def conv_block(x, filters):
    for _ in range(2):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    return x


def unet(size):
    inputs = layers.Input((size, size, 1))
    c1 = conv_block(inputs, 8)
    c2 = conv_block(layers.MaxPooling2D()(c1), 16)
    c3 = conv_block(layers.MaxPooling2D()(c2), 32)
    u2 = layers.Concatenate()([layers.UpSampling2D()(c3), c2])
    c4 = conv_block(u2, 16)
    u1 = layers.Concatenate()([layers.UpSampling2D()(c4), c1])
    c5 = conv_block(u1, 8)
    outputs = layers.Conv2D(1, 1, activation="sigmoid")(c5)
    return keras.Model(inputs, outputs, name="unet")


def dice_coef(y_true, y_pred, smooth=1.0):
    intersection = tf.reduce_sum(y_true * y_pred, axis=[1, 2, 3])
    total = tf.reduce_sum(y_true, axis=[1, 2, 3]) + tf.reduce_sum(y_pred, axis=[1, 2, 3])
    return (2.0 * intersection + smooth) / (total + smooth)


def bce_dice_loss(y_true, y_pred):
    bce = tf.reduce_mean(keras.losses.binary_crossentropy(y_true, y_pred), axis=[1, 2])
    return bce + 1.0 - dice_coef(y_true, y_pred)


train_ds, val_ds = get_dataset("train", 1), get_dataset("val", 2)
model = unet(CONFIG["size"])
model.compile(
    optimizer=keras.optimizers.Adam(CONFIG["lr"]),
    loss=bce_dice_loss,
    metrics=[dice_coef, keras.metrics.BinaryIoU(target_class_ids=[1])],
)
out = Path("unet_run")
out.mkdir(exist_ok=True)
callbacks = [
    keras.callbacks.ModelCheckpoint(out / "best.keras", monitor="val_loss", save_best_only=True)
]
model.fit(train_ds, validation_data=val_ds, epochs=CONFIG["epochs"], callbacks=callbacks, verbose=2)
results = model.evaluate(val_ds, verbose=0, return_dict=True)
print({k: round(v, 3) for k, v in results.items()}, "epsilon", K.epsilon())
