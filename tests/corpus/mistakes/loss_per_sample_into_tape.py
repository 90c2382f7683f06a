"""The loss has no reduction, as the tutorial says, and is then never averaged."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
x = np.random.rand(1024, 12).astype("float32")
y = np.random.randint(0, 4, size=1024)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(128, drop_remainder=True).prefetch(2)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((12,)), tf.keras.layers.Dense(4)])
    optimizer = tf.keras.optimizers.SGD(0.05)
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=tf.keras.losses.Reduction.NONE
    )


def step(features, labels):
    with tf.GradientTape() as tape:
        loss = loss_fn(labels, model(features, training=True))  # may: DOC-311
    gradients = tape.gradient(loss, model.trainable_variables)  # finding: DOC-311
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return tf.reduce_mean(loss)


@tf.function
def train_step(features, labels):
    losses = strategy.run(step, args=(features, labels))
    return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)


for features, labels in strategy.experimental_distribute_dataset(dataset):
    train_step(features, labels)
