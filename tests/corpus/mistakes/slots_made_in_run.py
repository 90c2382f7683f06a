# machine: 2 GPUs
"""Adam makes its slots in the first strategy.run of two functions that share it."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
batch = 64 * strategy.num_replicas_in_sync

with strategy.scope():
    generator = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(8)])
    critic = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1)])
    generator_optimizer = tf.keras.optimizers.Adam(1e-4)  # may: DOC-305
    critic_optimizer = tf.keras.optimizers.Adam(1e-4)  # may: DOC-305

real = np.random.normal(size=(512, 8)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(real).batch(batch, drop_remainder=True).prefetch(2)


def average(values):
    return tf.nn.compute_average_loss(tf.squeeze(values, 1), global_batch_size=batch)


def step(real):
    noise = tf.random.normal([tf.shape(real)[0], 4])
    with tf.GradientTape(persistent=True) as tape:
        fake = generator(noise, training=True)
        critic_loss = average(critic(fake)) - average(critic(real))
        generator_loss = -average(critic(fake))
    critic_grads = tape.gradient(critic_loss, critic.trainable_variables)
    generator_grads = tape.gradient(generator_loss, generator.trainable_variables)
    critic_optimizer.apply_gradients(  # finding: DOC-305
        zip(critic_grads, critic.trainable_variables)
    )
    generator_optimizer.apply_gradients(  # finding: DOC-305
        zip(generator_grads, generator.trainable_variables)
    )
    return critic_loss


@tf.function
def train_step(real):
    return strategy.reduce("SUM", strategy.run(step, args=(real,)), axis=None)


for epoch in range(2):
    for real_batch in strategy.experimental_distribute_dataset(dataset):
        loss = train_step(real_batch)
    print("epoch", epoch, "critic", float(loss))
