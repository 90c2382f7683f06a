# machine: 2 GPUs
"""The batch of one replica is multiplied, in another function than it is used."""

import numpy as np
import tensorflow as tf

PER_REPLICA_BATCH_SIZE = 64


def global_batch_size(strategy):
    return PER_REPLICA_BATCH_SIZE * strategy.num_replicas_in_sync


def dataset_fn(context):
    size = context.get_per_replica_batch_size(global_batch_size(strategy))
    x = np.random.rand(512, 4).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, 0])).repeat()
    return dataset.batch(size).prefetch(1)


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")

x = np.random.rand(512, 4).astype("float32")
model.fit(x, x[:, 0], batch_size=global_batch_size(strategy), epochs=1)
model.fit(strategy.distribute_datasets_from_function(dataset_fn), steps_per_epoch=4)
