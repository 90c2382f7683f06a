# machine: 2 GPUs
"""A loop around run, but over batches; the loop over shards only looks at them."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
BATCH = 64 * strategy.num_replicas_in_sync
data = tf.data.Dataset.from_tensor_slices(np.random.rand(512, 4).astype("float32"))
data = strategy.experimental_distribute_dataset(data.batch(BATCH).prefetch(1))

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])


def forward(x):
    return tf.reduce_sum(model(x, training=False))


@tf.function
def total(x):
    return strategy.reduce("SUM", strategy.run(forward, args=(x,)), axis=None)


for batch in data:
    result = total(batch)
    for share in strategy.experimental_local_results(batch):
        print(share.device, share.shape)
print(float(result))
