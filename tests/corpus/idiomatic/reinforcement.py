# machine: 1 GPU
"""REINFORCE on a bandit: acting needs values on the host, the update does not."""

import keras
import numpy as np
import tensorflow as tf

ARMS, ROUNDS, BATCH = 5, 20, 256
rng = np.random.default_rng(0)
chances = np.linspace(0.1, 0.9, ARMS)

policy = keras.Sequential([keras.Input((3,)), keras.layers.Dense(ARMS)])
optimizer = keras.optimizers.Adam(0.05)
optimizer.build(policy.trainable_variables)


@tf.function
def act(states):
    return tf.random.categorical(policy(states), 1)[:, 0]


@tf.function
def update(states, actions, rewards):
    with tf.GradientTape() as tape:
        logits = policy(states, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=logits)
        loss = tf.reduce_mean(losses * (rewards - tf.reduce_mean(rewards)))
    gradients = tape.gradient(loss, policy.trainable_variables)
    optimizer.apply_gradients(zip(gradients, policy.trainable_variables))


def play(actions):
    return (rng.random(BATCH) < chances[actions]).astype("float32")


def rollout():
    states = tf.constant(rng.normal(size=(BATCH, 3)).astype("float32"))
    actions = act(states)
    return states, actions, tf.constant(play(actions.numpy()))  # may: DOC-402


for _ in range(ROUNDS):
    update(*rollout())
print("reward", float(tf.reduce_mean(rollout()[2])))
