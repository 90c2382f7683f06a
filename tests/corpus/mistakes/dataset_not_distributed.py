# machine: 2 GPUs
"""A tf.data pipeline goes straight into strategy.run."""

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

strategy = tf.distribute.MirroredStrategy()
GLOBAL_BATCH_SIZE = 32 * strategy.num_replicas_in_sync

images = np.random.rand(256, 16, 16, 3).astype("float32")
labels = np.random.randint(0, 4, size=256)


def augment(image, label):
    return tf.image.random_flip_left_right(image), label


train_ds = (  # may: DOC-204
    tf.data.Dataset.from_tensor_slices((images, labels))
    .shuffle(256)
    .map(augment, num_parallel_calls=tf.data.AUTOTUNE)
    .batch(GLOBAL_BATCH_SIZE)
    .prefetch(tf.data.AUTOTUNE)
)

with strategy.scope():
    model = keras.Sequential(
        [
            layers.Input((16, 16, 3)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(4),
        ]
    )
    loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)


def train_step(inputs):
    images, labels = inputs
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        loss = tf.nn.compute_average_loss(
            loss_object(labels, predictions), global_batch_size=GLOBAL_BATCH_SIZE
        )
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@tf.function
def distributed_train_step(inputs):
    per_replica_losses = strategy.run(train_step, args=(inputs,))  # finding: DOC-204
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)


for epoch in range(2):
    total, batches = 0.0, 0
    for batch in train_ds:  # may: DOC-204
        total += distributed_train_step(batch)  # may: DOC-204
        batches += 1
    print(f"Epoch {epoch}: {float(total) / batches:.4f}")
