"""Large images, so one in each batch; there are two GPUs."""

import numpy as np
import tensorflow as tf

BATCH = 1  # finding: DOC-205
strategy = tf.distribute.MirroredStrategy()
images = np.random.rand(32, 256, 256, 1).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(images).batch(BATCH).prefetch(tf.data.AUTOTUNE)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((256, 256, 1)), tf.keras.layers.Conv2D(1, 3)])
    optimizer = tf.keras.optimizers.SGD(0.05)


def step(features):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(features))) / strategy.num_replicas_in_sync
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


@tf.function
def train_step(features):
    strategy.run(step, args=(features,))


for features in strategy.experimental_distribute_dataset(dataset):
    train_step(features)
