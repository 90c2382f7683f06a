"""Policies and values: returns normalised over the batch, old policies, target networks."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from .case import BuiltStep, adam, case, integers, learn, mlp, normal, sgd, state, uniform


def transitions(rng: Any, n: int) -> tuple[Any, ...]:
    """Return observations, actions, rewards, next observations and ends."""
    done = (rng.uniform(size=n) < 0.2).astype("float32")
    return normal(rng, n, 5), integers(rng, 4, n), normal(rng, n), normal(rng, n, 5), done


def log_of_chosen(logits: Any, actions: Any) -> Any:
    """Return the logarithms of the probabilities of the actions taken."""
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=logits)


@case("reinforcement/reinforce_with_normalised_returns")
def reinforce() -> BuiltStep:
    model = mlp(5, 12, 4)

    def loss_of(observations: Any, actions: Any, returns: Any) -> Any:
        mean, deviation = tf.math.reduce_mean(returns), tf.math.reduce_std(returns)
        returns = (returns - mean) / (deviation + 0.01)
        return -tf.math.reduce_sum(log_of_chosen(model(observations), actions) * returns) / 10.0

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 5), integers(rng, 4, n), normal(rng, n)

    return learn(loss_of, model, batch)


@case("reinforcement/returns_summed_backwards_over_the_batch")
def episode() -> BuiltStep:
    model = mlp(5, 12, 4)
    weights = model.trainable_variables
    optimizer = sgd(weights)

    def expected_return(rewards: Any) -> Any:
        n = tf.shape(rewards)[0]
        rewards = tf.cast(rewards[::-1], tf.float32)
        returns = tf.TensorArray(tf.float32, size=n)
        total = tf.constant(0.0)
        for i in tf.range(n):
            total = rewards[i] + 0.9 * total
            total.set_shape([])
            returns = returns.write(i, total)
        return returns.stack()[::-1]

    def step(observations: Any, actions: Any, rewards: Any) -> Any:
        returns = expected_return(rewards)
        returns = (returns - tf.reduce_mean(returns)) / (tf.math.reduce_std(returns) + 0.01)
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(log_of_chosen(model(observations), actions) * returns)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return tf.reduce_sum(rewards)

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 5), integers(rng, 4, n), normal(rng, n)

    return BuiltStep(step=step, batch=batch, variables=state(model, optimizer))


@case("reinforcement/ppo")
def ppo() -> BuiltStep:
    actor, critic = mlp(5, 10, 4), mlp(5, 10, 1)
    of_actor, of_critic = adam(actor.trainable_variables), adam(critic.trainable_variables)

    def step(observations: Any, actions: Any, old: Any, advantages: Any, returns: Any) -> Any:
        advantages = (advantages - tf.reduce_mean(advantages)) / (
            tf.math.reduce_std(advantages) + 0.01
        )
        for _ in range(2):
            with tf.GradientTape() as tape:
                logits = actor(observations)
                logs = tf.nn.log_softmax(logits)
                chosen = tf.reduce_sum(tf.one_hot(actions, 4) * logs, axis=1)
                ratio = tf.exp(chosen - old)
                clipped = tf.clip_by_value(ratio, 0.8, 1.2)
                gain = tf.minimum(ratio * advantages, clipped * advantages)
                entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(logs) * logs, axis=1))
                loss = -tf.reduce_mean(gain) - 0.01 * entropy
            of_actor.apply(tape.gradient(loss, actor.trainable_variables))
            with tf.GradientTape() as tape:
                value_loss = 0.5 * tf.reduce_mean((returns - critic(observations)[:, 0]) ** 2)
            of_critic.apply(tape.gradient(value_loss, critic.trainable_variables))
        kl = tf.reduce_mean(old - tf.gather(logs, actions, batch_dims=1))
        return {"policy": loss, "value": value_loss, "kl": kl}

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        old = -1.4 + 0.2 * normal(rng, n)
        return normal(rng, n, 5), integers(rng, 4, n), old, normal(rng, n), normal(rng, n)

    return BuiltStep(step=step, batch=batch, variables=state(actor, critic, of_actor, of_critic))


@case("reinforcement/actor_critic_over_unrolls")
def actor_critic() -> BuiltStep:
    body, policy, value = mlp(5, 10, 8), mlp(8, 4), mlp(8, 1)
    weights = [v for part in (body, policy, value) for v in part.trainable_variables]
    optimizer = sgd(weights)
    huber = keras.losses.Huber(reduction="sum")

    def step(observations: Any, actions: Any, rewards: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.tanh(body(tf.reshape(observations, [-1, 5])))
            steps = tf.shape(rewards)[1]
            logits = tf.reshape(policy(hidden), [-1, steps, 4])
            values = tf.reshape(value(hidden), [-1, steps])
            backwards = tf.scan(
                lambda total, reward: reward + 0.9 * total,
                tf.reverse(tf.transpose(rewards), axis=[0]),
                initializer=tf.zeros_like(rewards[:, 0]),
            )
            returns = tf.transpose(tf.reverse(backwards, axis=[0]))
            advantage = tf.stop_gradient(returns - values)
            actor_loss = -tf.reduce_sum(log_of_chosen(logits, actions) * advantage)
            loss = (actor_loss + huber(values, returns)) / 100.0
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, weights), 0.5)
        optimizer.apply(gradients, weights)
        return loss, tf.reduce_mean(tf.reduce_sum(rewards, axis=1))

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 6, 5), integers(rng, 4, n, 6), normal(rng, n, 6)

    return BuiltStep(step=step, batch=batch, variables=[*weights, *optimizer.variables])


@case("reinforcement/double_q_with_priorities")
def double_q() -> BuiltStep:
    model, target = mlp(5, 12, 4), mlp(5, 12, 4)
    target.set_weights(model.get_weights())
    optimizer = adam(model.trainable_variables)
    count = tf.Variable(0, trainable=False)
    huber = keras.losses.Huber(reduction="none")

    def step(batch: Any, weights: Any) -> Any:
        observations, actions, rewards, following, done = batch
        best = tf.argmax(model(following), axis=1)
        ahead = tf.gather(target(following), best, batch_dims=1)
        wanted = rewards + 0.95 * (1 - done) * ahead
        with tf.GradientTape() as tape:
            mask = tf.one_hot(actions, 4)
            chosen = tf.reduce_sum(model(observations) * mask, axis=1)
            loss = tf.reduce_mean(weights * huber(wanted[:, None], chosen[:, None]))
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        count.assign_add(1)
        if count % 2 == 0:
            for old, new in zip(target.variables, model.variables, strict=True):
                old.assign(new)
        return loss, tf.abs(wanted - chosen)

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return transitions(rng, n), uniform(rng, n) + 0.1

    return BuiltStep(step=step, batch=batch, variables=[*state(model, target, optimizer), count])


@case("reinforcement/soft_actor_critic")
def soft_actor_critic() -> BuiltStep:
    actor = mlp(5, 8, 4)
    critics, targets = [mlp(7, 8, 1) for _ in range(2)], [mlp(7, 8, 1) for _ in range(2)]
    for critic, target in zip(critics, targets, strict=True):
        target.set_weights(critic.get_weights())
    log_alpha = tf.Variable(0.0)
    weights = [v for critic in critics for v in critic.trainable_variables]
    of_actor, of_critics, of_alpha = (
        adam(actor.trainable_variables),
        adam(weights),
        adam([log_alpha]),
    )
    seeds = keras.random.SeedGenerator(1)

    def act(observations: Any) -> Any:
        mean, log_std = tf.split(actor(observations), 2, axis=1)
        noise = keras.random.normal(tf.shape(mean), seed=seeds)
        action = mean + tf.exp(0.3 * log_std) * noise
        return tf.tanh(action), -tf.reduce_sum(0.5 * noise**2 + 0.3 * log_std, axis=1)

    def step(observations: Any, actions: Any, rewards: Any, following: Any, done: Any) -> Any:
        alpha = tf.exp(log_alpha)
        ahead, logs = act(following)
        both = tf.concat([following, ahead], axis=1)
        least = tf.minimum(targets[0](both), targets[1](both))[:, 0]
        wanted = rewards + 0.9 * (1 - done) * (least - alpha * logs)
        with tf.GradientTape() as tape:
            both = tf.concat([observations, actions], axis=1)
            loss = tf.add_n([0.5 * tf.reduce_mean((wanted - c(both)[:, 0]) ** 2) for c in critics])
        of_critics.apply(tape.gradient(loss, weights), weights)
        with tf.GradientTape() as tape:
            made, logs = act(observations)
            both = tf.concat([observations, made], axis=1)
            actor_loss = tf.reduce_mean(alpha * logs - critics[0](both)[:, 0])
        of_actor.apply(tape.gradient(actor_loss, actor.trainable_variables))
        with tf.GradientTape() as tape:
            alpha_loss = -tf.reduce_mean(log_alpha * tf.stop_gradient(logs - 2.0))
        of_alpha.apply([tape.gradient(alpha_loss, log_alpha)], [log_alpha])
        for critic, target in zip(critics, targets, strict=True):
            for new, old in zip(critic.variables, target.variables, strict=True):
                old.assign(0.95 * old + 0.05 * new)
        return {"critic": loss, "actor": actor_loss, "alpha": alpha}

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        observations, _, rewards, following, done = transitions(rng, n)
        return observations, normal(rng, n, 2), rewards, following, done

    holders = (actor, *critics, *targets, log_alpha, of_actor, of_critics, of_alpha)
    return BuiltStep(step=step, batch=batch, variables=[*state(*holders), seeds.state])


@case("reinforcement/distribution_of_returns")
def distributional() -> BuiltStep:
    model, target = mlp(5, 12, 4 * 7), mlp(5, 12, 4 * 7)
    support = tf.linspace(-2.0, 2.0, 7)

    def loss_of(observations: Any, actions: Any, rewards: Any, following: Any, done: Any) -> Any:
        ahead = tf.nn.softmax(tf.reshape(target(following), [-1, 4, 7]))
        best = tf.argmax(tf.reduce_sum(ahead * support, axis=2), axis=1, output_type=tf.int32)
        ahead = tf.gather_nd(ahead, tf.stack([tf.range(tf.shape(best)[0]), best], axis=1))
        moved = rewards[:, None] + 0.9 * (1 - done)[:, None] * support[None]
        moved = tf.clip_by_value(moved, -2.0, 2.0)
        near = 1.0 - tf.abs(moved[:, None] - support[None, :, None]) / (4.0 / 6.0)
        wanted = tf.reduce_sum(tf.clip_by_value(near, 0.0, 1.0) * ahead[:, None], axis=2)
        logits = tf.reshape(model(observations), [-1, 4, 7])
        chosen = tf.gather(logits, actions, axis=1, batch_dims=1)
        return tf.reduce_mean(
            tf.nn.softmax_cross_entropy_with_logits(tf.stop_gradient(wanted), chosen)
        )

    return learn(loss_of, model, transitions, extra=[target])
