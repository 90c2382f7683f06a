# machine: 2 GPUs
"""The step of the replica stands in a module of its own."""

import keras
import numpy as np
import tensorflow as tf
from steps import make_replica_step

strategy = tf.distribute.MirroredStrategy()
GLOBAL_BATCH = 64 * strategy.num_replicas_in_sync

x = np.random.normal(size=(512, 12)).astype("float32")
y = np.random.randint(0, 2, size=(512, 1)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH).prefetch(tf.data.AUTOTUNE)
data = strategy.experimental_distribute_dataset(data)

with strategy.scope():
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

replica_step = make_replica_step(model, optimizer)


@tf.function
def step(features, targets):
    strategy.run(replica_step, args=(features, targets))  # may: DOC-214


for _ in range(3):
    for features, targets in data:
        step(features, targets)
