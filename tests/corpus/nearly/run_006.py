# machine: 2 GPUs
"""A custom loop that calls run by a name of its own."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
on_all = strategy.run
BATCH = 64 * strategy.num_replicas_in_sync

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)


def step(x):
    with tf.GradientTape() as tape:
        squares = tf.reduce_sum(tf.square(model(x) - x[:, :1]), axis=1)
        loss = tf.nn.compute_average_loss(squares, global_batch_size=BATCH)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@tf.function
def train(x):
    return strategy.reduce("SUM", on_all(step, (x,)), axis=None)


data = tf.data.Dataset.from_tensor_slices(np.random.rand(512, 4).astype("float32"))
for x in strategy.experimental_distribute_dataset(data.batch(BATCH).prefetch(1)):
    loss = train(x)
print("loss", float(loss))
