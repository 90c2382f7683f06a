# machine: 2 GPUs
"""A mean over pixels, not over samples; the samples are averaged over the global batch."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
BATCH = 64 * strategy.num_replicas_in_sync

with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.Input((8, 8, 1)), tf.keras.layers.Conv2D(1, 3, padding="same")]
    )
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)


def step(images):
    with tf.GradientTape() as tape:
        errors = tf.square(model(images, training=True) - images)
        per_image = tf.reduce_mean(errors, axis=[1, 2, 3])
        loss = tf.reduce_sum(per_image) / BATCH
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    # Only looked at, no gradient is taken of it.
    largest = tf.reduce_mean(tf.reduce_max(errors, axis=[1, 2, 3]))
    return loss, largest


@tf.function
def train(images):
    losses, largest = strategy.run(step, args=(images,))
    return strategy.reduce("SUM", losses, axis=None), strategy.reduce("MEAN", largest, axis=None)


data = tf.data.Dataset.from_tensor_slices(np.random.rand(512, 8, 8, 1).astype("float32"))
for images in strategy.experimental_distribute_dataset(data.batch(BATCH).prefetch(1)):
    loss, largest = train(images)
print(float(loss), float(largest))
