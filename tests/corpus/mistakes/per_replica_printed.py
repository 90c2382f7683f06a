# machine: 2 GPUs
"""Prints what strategy.run returned: one value for each replica, not the loss."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
GLOBAL = 32 * strategy.num_replicas_in_sync

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)


def step_fn(x, y):
    with tf.GradientTape() as tape:
        per_example = tf.squeeze(tf.square(model(x) - y), axis=1)
        loss = tf.nn.compute_average_loss(per_example, global_batch_size=GLOBAL)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


@tf.function
def train_step(x, y):
    return strategy.run(step_fn, args=(x, y))


x = np.random.rand(512, 3).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(GLOBAL).prefetch(2)
for epoch in range(2):
    for features, targets in strategy.experimental_distribute_dataset(data):
        loss = train_step(features, targets)
    print("epoch", epoch, "loss:", loss)  # finding: RUN-010
