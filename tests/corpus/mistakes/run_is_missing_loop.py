# machine: 2 GPUs
"""Everything for the strategy but strategy.run: the step is called as it is."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()  # may: RUN-006
BATCH_SIZE = 64 * strategy.num_replicas_in_sync

data = np.random.rand(1024, 20).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(data).batch(BATCH_SIZE).prefetch(2)

with strategy.scope():
    encoder = tf.keras.Sequential([tf.keras.Input((20,)), tf.keras.layers.Dense(4, "relu")])
    decoder = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(20)])
    optimizer = tf.keras.optimizers.Adam(1e-3)


@tf.function
def train_step(batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(decoder(encoder(batch)) - batch))
    variables = encoder.trainable_variables + decoder.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss


with strategy.scope():  # may: DOC-203, RUN-006
    for epoch in range(3):
        for batch in dataset:
            loss = train_step(batch)  # finding: RUN-006
        print("epoch", epoch, float(loss))
