# machine: 1 GPU
"""Pictures are prepared one after the other while the GPU waits."""

import numpy as np
import tensorflow as tf

images = np.random.randint(0, 255, size=(512, 64, 64, 3), dtype=np.uint8)
labels = np.random.randint(0, 10, 512)


def preprocess(image, label):
    image = tf.image.convert_image_dtype(image, tf.float32)
    image = tf.image.resize(image, (72, 72))
    image = tf.image.random_crop(image, (64, 64, 3))
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_brightness(image, 0.2)
    return image, label


dataset = tf.data.Dataset.from_tensor_slices((images, labels))
dataset = dataset.shuffle(512)
dataset = dataset.map(preprocess)  # finding: DOC-401
dataset = dataset.batch(64)  # may: DOC-401

model = tf.keras.Sequential(
    [
        tf.keras.Input((64, 64, 3)),
        tf.keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
        tf.keras.layers.GlobalAveragePooling2D(),
        tf.keras.layers.Dense(10),
    ]
)
model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(dataset, epochs=1)  # may: DOC-401
