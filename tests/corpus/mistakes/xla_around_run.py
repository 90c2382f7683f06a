"""jit_compile=True on the function that calls strategy.run."""

import numpy as np
import tensorflow as tf

GLOBAL_BATCH = 128
strategy = tf.distribute.MirroredStrategy()
x = np.random.rand(1024, 8).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(x).batch(GLOBAL_BATCH).prefetch(tf.data.AUTOTUNE)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.01)


def replica_step(features):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(model(features))) / GLOBAL_BATCH
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@tf.function(jit_compile=True)  # finding: DOC-213
def train_step(features):
    return strategy.run(replica_step, args=(features,))


for features in strategy.experimental_distribute_dataset(dataset):
    train_step(features)
