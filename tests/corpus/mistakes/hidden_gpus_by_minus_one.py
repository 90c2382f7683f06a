"""Fashion classifier. The GPUs were hidden while debugging and never brought back."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # finding: DOC-101

import numpy as np
import tensorflow as tf
from tensorflow import keras

BATCH_SIZE_PER_REPLICA = 64

strategy = tf.distribute.MirroredStrategy()
print("Number of devices: {}".format(strategy.num_replicas_in_sync))
batch_size = BATCH_SIZE_PER_REPLICA * strategy.num_replicas_in_sync

images = np.random.rand(512, 28, 28, 1).astype("float32")
labels = np.random.randint(0, 10, size=512)
train = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(512)
train = train.batch(batch_size).prefetch(tf.data.AUTOTUNE)

with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.Adam(),
        metrics=["accuracy"],
    )

model.fit(train, epochs=2)
