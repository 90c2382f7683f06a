# machine: 2 GPUs
"""Values of replicas are reduced, or taken apart, before they are printed."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
BATCH = 64 * strategy.num_replicas_in_sync
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])


def measure(x):
    squares = tf.reduce_sum(tf.square(model(x) - x[:, :1]), axis=1)
    return tf.nn.compute_average_loss(squares, global_batch_size=BATCH)


@tf.function
def evaluate(x):
    loss = strategy.run(measure, args=(x,))
    loss = strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None)
    return loss


data = tf.data.Dataset.from_tensor_slices(np.random.rand(512, 4).astype("float32"))
for x in strategy.experimental_distribute_dataset(data.batch(BATCH).prefetch(1)):
    loss = evaluate(x)
    parts = strategy.run(measure, args=(x,))
    parts = [part.device for part in strategy.experimental_local_results(parts)]
print("loss", float(loss), "from", parts)
