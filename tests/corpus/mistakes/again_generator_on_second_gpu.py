"""A GAN whose generator lives on one GPU and whose critic on the other."""

import keras
import numpy as np
import tensorflow as tf

GEN, CRITIC = "/gpu:0", "/gpu:1"


def mlp(sizes, dim):
    return keras.Sequential(
        [
            keras.Input((dim,)),
            *[keras.layers.Dense(s, "relu") for s in sizes[:-1]],
            keras.layers.Dense(sizes[-1]),
        ]
    )


with tf.device(GEN):
    generator = mlp([64, 64, 2], 8)
    gen_opt = keras.optimizers.Adam(1e-4)
    gen_opt.build(generator.trainable_variables)
with tf.device(CRITIC):
    critic = mlp([64, 64, 1], 2)
    critic_opt = keras.optimizers.Adam(1e-4)
    critic_opt.build(critic.trainable_variables)


def critic_loss(real, noise):
    with tf.device(GEN):
        fake = generator(noise)
    with tf.device(CRITIC):
        return tf.reduce_mean(critic(fake)) - tf.reduce_mean(critic(real))


@tf.function
def train_critic(real, noise):
    with tf.GradientTape() as tape:
        loss = critic_loss(real, noise)
    grads = tape.gradient(loss, critic.trainable_variables)  # finding: DOC-301
    critic_opt.apply_gradients(zip(grads, critic.trainable_variables))
    return loss


@tf.function
def train_generator(noise):
    with tf.GradientTape() as tape:
        with tf.device(GEN):
            fake = generator(noise)
        with tf.device(CRITIC):
            loss = -tf.reduce_mean(critic(fake))
    grads = tape.gradient(loss, generator.trainable_variables)  # finding: DOC-301
    gen_opt.apply_gradients(zip(grads, generator.trainable_variables))
    return loss


points = tf.data.Dataset.from_tensor_slices(np.random.normal(size=(1024, 2)).astype("float32"))
for real in points.repeat(2).batch(128).prefetch(2):
    c = train_critic(real, tf.random.normal((128, 8)))
    g = train_generator(tf.random.normal((128, 8)))
print(float(c), float(g))
