# machine: 2 GPUs
"""The batch is split by hand and every shard goes through strategy.run."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
n = strategy.num_replicas_in_sync
GLOBAL_BATCH = 64 * n

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

x = np.random.normal(size=(512, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH).prefetch(1)


def replica_step(xs, ys):
    with tf.GradientTape() as tape:
        squares = tf.reduce_sum(tf.square(model(xs) - ys), axis=1)
        loss = tf.nn.compute_average_loss(squares, global_batch_size=GLOBAL_BATCH)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


for xb, yb in dataset:
    losses = []
    for xs, ys in zip(tf.split(xb, n), tf.split(yb, n)):  # may: RUN-007
        loss = strategy.run(  # finding: RUN-007  # may: ENG-060, DOC-204
            replica_step, args=(xs, ys)
        )
        losses.append(loss)
print("done", model.get_weights())
