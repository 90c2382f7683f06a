# machine: 2 GPUs
"""A contrastive loss, averaged over the samples of one replica: twice the gradient."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
global_batch = 64 * strategy.num_replicas_in_sync

x = np.random.normal(size=(1024, 16)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(x).shuffle(1024).batch(global_batch).prefetch(2)
dist_dataset = strategy.experimental_distribute_dataset(dataset)

with strategy.scope():
    encoder = tf.keras.Sequential(
        [tf.keras.Input((16,)), tf.keras.layers.Dense(32, "relu"), tf.keras.layers.Dense(8)]
    )
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(encoder.trainable_variables)


def contrastive(a, b):
    a, b = tf.math.l2_normalize(a, axis=1), tf.math.l2_normalize(b, axis=1)
    logits = tf.matmul(a, b, transpose_b=True) / 0.1
    labels = tf.range(tf.shape(a)[0])
    per_sample = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(per_sample)  # finding: DOC-214


def train_step(batch):
    with tf.GradientTape() as tape:
        first = encoder(batch + 0.1 * tf.random.normal(tf.shape(batch)), training=True)
        second = encoder(batch + 0.1 * tf.random.normal(tf.shape(batch)), training=True)
        loss = contrastive(first, second)  # may: DOC-214
    gradients = tape.gradient(loss, encoder.trainable_variables)  # may: DOC-214
    optimizer.apply_gradients(zip(gradients, encoder.trainable_variables))
    return loss


@tf.function
def distributed_train_step(batch):
    losses = strategy.run(train_step, args=(batch,))  # may: DOC-214
    return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)


for epoch in range(2):
    for batch in dist_dataset:
        loss = distributed_train_step(batch)
    print("epoch", epoch, "loss", loss.numpy())
