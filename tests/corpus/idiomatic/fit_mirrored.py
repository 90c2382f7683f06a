# machine: 2 GPUs
"""Keras fit under MirroredStrategy, as in the guide."""

import numpy as np
import tensorflow as tf

BUFFER_SIZE = 1024
BATCH_SIZE_PER_REPLICA = 64
EPOCHS = 2

strategy = tf.distribute.MirroredStrategy()
print("Number of devices: {}".format(strategy.num_replicas_in_sync))
BATCH_SIZE = BATCH_SIZE_PER_REPLICA * strategy.num_replicas_in_sync


def scale(image, label):
    return tf.cast(image, tf.float32) / 255.0, label


images = np.random.randint(0, 255, size=(1024, 28, 28, 1), dtype=np.uint8)
labels = np.random.randint(0, 10, size=1024)
train_dataset = (
    tf.data.Dataset.from_tensor_slices((images, labels))
    .map(scale, num_parallel_calls=tf.data.AUTOTUNE)
    .cache()
    .shuffle(BUFFER_SIZE)
    .batch(BATCH_SIZE)
    .prefetch(tf.data.AUTOTUNE)
)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            tf.keras.layers.Conv2D(16, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(learning_rate=0.001),
        metrics=["accuracy"],
    )


def decay(epoch):
    return 1e-3 if epoch < 1 else 1e-4


callbacks = [
    tf.keras.callbacks.LearningRateScheduler(decay),
    tf.keras.callbacks.ModelCheckpoint("best.keras", monitor="loss", save_best_only=True),
]
model.fit(train_dataset, epochs=EPOCHS, callbacks=callbacks)
