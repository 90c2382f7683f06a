# machine: 2 GPUs
"""Scaled once: the sum over samples by the batch; the penalty by the replicas."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
BATCH = 64 * strategy.num_replicas_in_sync

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((6,)),
            tf.keras.layers.Dense(12, "relu", kernel_regularizer="l2"),
            tf.keras.layers.Dense(1),
        ]
    )
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)


def step(x):
    with tf.GradientTape() as tape:
        squares = tf.reduce_sum(tf.square(model(x, training=True) - x[:, :1]), axis=1)
        loss = tf.nn.compute_average_loss(squares, global_batch_size=BATCH)
        loss += tf.add_n(model.losses) / strategy.num_replicas_in_sync
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@tf.function
def train(x):
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(x,)), axis=None)


data = tf.data.Dataset.from_tensor_slices(np.random.rand(512, 6).astype("float32"))
total = batches = 0
for x in strategy.experimental_distribute_dataset(data.batch(BATCH).prefetch(1)):
    total += train(x)
    batches += 1
print("mean loss", float(total) / batches)
