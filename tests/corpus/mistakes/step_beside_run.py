"""The distributed step is written, but the loop still calls the step of one replica."""

import numpy as np
import tensorflow as tf

GLOBAL_BATCH = 128
strategy = tf.distribute.MirroredStrategy()
x = np.random.rand(1024, 8).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(GLOBAL_BATCH).prefetch(2)
distributed = strategy.experimental_distribute_dataset(dataset)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)


def train_step(batch):
    features, labels = batch
    with tf.GradientTape() as tape:
        per_sample = tf.reduce_sum(tf.square(model(features) - labels), axis=1)
        loss = tf.nn.compute_average_loss(per_sample, global_batch_size=GLOBAL_BATCH)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@tf.function
def distributed_train_step(batch):
    losses = strategy.run(train_step, args=(batch,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


for epoch in range(2):
    for batch in distributed:
        loss = train_step(batch)  # finding: DOC-212
