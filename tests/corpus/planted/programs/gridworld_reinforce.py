"""REINFORCE on a small grid world: walk to the goal, avoid the pit. NumPy environment."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

SIZE = 5
GOAL, PIT = (4, 4), (2, 2)
MOVES = [(-1, 0), (1, 0), (0, -1), (0, 1)]
GAMMA = 0.97
ITERATIONS = 90
EPISODES = 32
MAX_STEPS = 20

keras.utils.set_random_seed(3)
rng = np.random.default_rng(3)


class Grid:
    """A batch of independent walks, so that the policy is called once per time step."""

    def __init__(self, n):
        self.pos = np.zeros((n, 2), np.int64)
        self.done = np.zeros(n, bool)

    def observe(self):
        return self.pos.astype("float32") / (SIZE - 1) - 0.5

    def step(self, actions):
        moved = np.clip(self.pos + np.array(MOVES)[actions], 0, SIZE - 1)
        self.pos = np.where(self.done[:, None], self.pos, moved)
        goal = (self.pos == GOAL).all(1) & ~self.done
        pit = (self.pos == PIT).all(1) & ~self.done
        reward = np.where(self.done, 0.0, -0.05 + 1.0 * goal - 1.0 * pit)
        self.done |= goal | pit
        return reward


policy = keras.Sequential(
    [
        keras.Input((2,)),
        keras.layers.Dense(64, activation="tanh"),
        keras.layers.Dense(64, activation="tanh"),
        keras.layers.Dense(len(MOVES)),
    ]
)
optimizer = keras.optimizers.Adam(0.01)


@tf.function(reduce_retracing=True)
def act(observations):
    return tf.random.categorical(policy(observations), 1)[:, 0]


@tf.function(reduce_retracing=True)
def update(observations, actions, advantages, weights):
    with tf.GradientTape() as tape:
        logits = policy(observations, training=True)
        log_probs = tf.nn.log_softmax(logits)
        picked = tf.gather(log_probs, actions, axis=1, batch_dims=1)
        entropy = -tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=1)
        loss = -tf.reduce_sum(weights * (picked * advantages + 0.01 * entropy))
        loss = loss / tf.reduce_sum(weights)
    gradients = tape.gradient(loss, policy.trainable_variables)
    optimizer.apply_gradients(zip(gradients, policy.trainable_variables))
    return loss


def play():
    grid = Grid(EPISODES)
    observations, actions, rewards, alive = [], [], [], []
    for _ in range(MAX_STEPS):
        seen = grid.observe()
        chosen = act(seen).numpy()
        alive.append(~grid.done)
        rewards.append(grid.step(chosen))
        observations.append(seen)
        actions.append(chosen)
    returns = np.zeros((MAX_STEPS, EPISODES))
    running = np.zeros(EPISODES)
    for t in reversed(range(MAX_STEPS)):
        running = rewards[t] + GAMMA * running
        returns[t] = running
    return observations, actions, returns, np.array(alive), np.sum(rewards, axis=0)


for iteration in range(ITERATIONS):
    observations, actions, returns, alive, score = play()
    advantages = (returns - returns[alive].mean()) / (returns[alive].std() + 1e-6)
    update(
        tf.constant(np.concatenate(observations), tf.float32),
        tf.constant(np.concatenate(actions), tf.int64),
        tf.constant(advantages.reshape(-1), tf.float32),
        tf.constant(alive.reshape(-1), tf.float32),
    )
    if iteration % 15 == 0 or iteration == ITERATIONS - 1:
        print(f"iteration {iteration}: mean score {score.mean():.3f}")
