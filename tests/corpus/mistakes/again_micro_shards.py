"""Splits each batch by hand and runs the replicas one after another."""

import keras
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
n = strategy.num_replicas_in_sync
BATCH = 256

with strategy.scope():
    model = keras.Sequential(
        [keras.Input((10,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
    )
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)


def fwd_bwd(x, y):
    with tf.GradientTape() as tape:
        loss = tf.nn.compute_average_loss(
            keras.losses.mean_squared_error(y, model(x, training=True)), global_batch_size=BATCH
        )
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


@tf.function
def step(x, y):
    total = 0.0
    for xs, ys in zip(tf.split(x, n), tf.split(y, n)):  # may: RUN-007
        total += strategy.reduce(  # finding: RUN-007  # may: ENG-060
            "SUM", strategy.run(fwd_bwd, args=(xs, ys)), axis=None
        )
    return total


def batches(num):
    rng = np.random.default_rng(3)
    for _ in range(num):
        x = rng.normal(size=(BATCH, 10)).astype("float32")
        yield tf.convert_to_tensor(x), tf.convert_to_tensor(x[:, :1])


last = None
for x, y in batches(30):
    last = step(x, y)
print("last", float(last))
