# machine: 2 GPUs
"""A loss per sample that is divided by the global batch; and a gradient with respect to images."""

import numpy as np
import tensorflow as tf

GLOBAL_BATCH = 128
strategy = tf.distribute.MirroredStrategy()
x = np.random.rand(1024, 12).astype("float32")
y = np.random.randint(0, 4, size=1024)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH, drop_remainder=True)
dataset = dataset.prefetch(tf.data.AUTOTUNE)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((12,)), tf.keras.layers.Dense(4)])
    optimizer = tf.keras.optimizers.SGD(0.05)
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def step(features, labels):
    with tf.GradientTape() as tape:
        # The gradient of several values is that of their sum.
        loss = loss_fn(labels, model(features, training=True)) / GLOBAL_BATCH
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


def disturbed(features, labels):
    with tf.GradientTape() as tape:
        tape.watch(features)
        loss = loss_fn(labels, model(features))
    return features + 0.01 * tf.sign(tape.gradient(loss, features))


@tf.function
def train_step(features, labels):
    strategy.run(step, args=(features, labels))


for features, labels in strategy.experimental_distribute_dataset(dataset):
    train_step(features, labels)
print(disturbed(tf.constant(x[:8]), tf.constant(y[:8])).shape)
