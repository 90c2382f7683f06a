# machine: 2 GPUs
"""The dataset is distributed far from the loop, and under the same name."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
BATCH = 64 * strategy.num_replicas_in_sync


def load(strategy):
    x = np.random.rand(512, 4).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(BATCH).prefetch(1)
    dataset = strategy.experimental_distribute_dataset(dataset)
    return dataset


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
def train(iterator):
    return strategy.reduce("SUM", strategy.run(step, args=(next(iterator),)), axis=None)


iterator = iter(load(strategy))
for _ in range(4):
    loss = train(iterator)
print("loss", float(loss))
