"""Policy gradient: episodes in Python, one update for each."""

import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(5)
x = np.random.default_rng(0).normal(size=(60, 8)).astype("float32")
y = np.sin(x[:, :1])
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(2)])
optimizer = keras.optimizers.SGD(0.05)
draws = np.random.default_rng(1)
seen = []


def play():
    """Return the states, actions and returns of an episode of 12 steps."""
    state, states, actions, rewards = draws.normal(size=8).astype("float32"), [], [], []
    for _ in range(12):
        chances = tf.nn.softmax(model(state[None]))[0].numpy()
        action = int(draws.uniform() > round(float(chances[0]), 3))
        states.append(state)
        actions.append(action)
        rewards.append(float(np.tanh(state[action])))
        state = (np.roll(state, 1) + 0.1 * action).astype("float32")
    returns = np.cumsum(rewards[::-1])[::-1]
    return np.array(states), np.array(actions), ((returns - returns.mean()) / 5).astype("float32")


for episode in range(8):
    states, actions, returns = play()
    with tf.GradientTape() as tape:
        logits = model(states, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=logits)
        loss = tf.reduce_mean(losses * returns)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    seen.append(float(loss))

np.savez(sys.argv[1], np.array(seen), *model.get_weights())
