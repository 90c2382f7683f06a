"""Branches, loops, functions in functions, and policies that are learned."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .case import (
    BuiltStep,
    adam,
    case,
    columns,
    integers,
    learn,
    learned,
    mlp,
    normal,
    normals,
    of_shape,
    sgd,
    squared,
    state,
    to_regress,
    trained,
    uniform,
    whole,
    written,
)


@written(
    "control_flow/step_skipped_unless_finite",
    to_regress(),
    lambda: (*trained(mlp(6, 10, 4)), tf.Variable(0, trainable=False)),
)
def skipped(model: Any, optimizer: Any, skips: Any, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = squared(model, x, y)
    gradients = tape.gradient(loss, model.trainable_variables)

    def apply() -> Any:
        optimizer.apply(gradients, model.trainable_variables)
        return tf.constant(True)

    def skip() -> Any:
        skips.assign_add(1)
        return tf.constant(False)

    good = tf.math.is_finite(loss) & (loss < 1.4)
    return tf.where(good, loss, 0.0), tf.cond(good, apply, skip)


@learned("control_flow/branch_on_a_statistic_of_the_batch", to_regress(), lambda: mlp(6, 10, 4))
def statistic(model: Any, x: Any, y: Any) -> Any:
    error = y - model(x)
    if tf.reduce_mean(y) > 0.0:
        loss = tf.reduce_mean(tf.square(error))
    elif tf.shape(x)[0] > 10:
        loss = 0.5 * tf.reduce_mean(tf.square(error)) + 0.1 * tf.reduce_mean(tf.abs(error))
    else:
        loss = tf.sqrt(tf.reduce_mean(tf.square(error)))
    return loss


@case("control_flow/alternating_networks")
def alternating() -> BuiltStep:
    first, second = mlp(6, 8, 4), mlp(6, 8, 4)
    of_first, of_second = sgd(first.trainable_variables), adam(second.trainable_variables)
    count = tf.Variable(0, trainable=False)

    def train(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = squared(model, x, y)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    def step(x: Any, y: Any) -> Any:
        loss = tf.switch_case(
            count % 3,
            [lambda: train(first, of_first, x, y), lambda: train(second, of_second, x, y)],
            default=lambda: squared(first, x, y) - squared(second, x, y),
        )
        count.assign_add(1)
        return loss

    return BuiltStep(
        step=step, batch=to_regress(), variables=[*state(first, second, of_first, of_second), count]
    )


@learned("control_flow/cases_by_size_of_the_loss", to_regress(), lambda: mlp(6, 10, 4))
def cases(model: Any, x: Any, y: Any) -> Any:
    error = y - model(x)
    mean = tf.reduce_mean(tf.square(error))
    return tf.case(
        [(mean > 2.0, lambda: tf.sqrt(mean)), (mean > 0.9, lambda: 0.5 * mean)],
        default=lambda: mean * 1.1,
    )


@written(
    "control_flow/map_over_samples",
    to_regress(),
    lambda: tf.Variable(tf.random.stateless_normal([6, 4], seed=[1, 2])),
)
def mapped(w: Any, x: Any, y: Any) -> Any:
    def row_loss(sample: Any) -> Any:
        features, target = sample
        guess = tf.tanh(tf.linalg.matvec(w, features, transpose_a=True))
        return tf.reduce_logsumexp((target - guess) ** 2)

    with tf.GradientTape() as tape:
        each = tf.map_fn(row_loss, (x, y), fn_output_signature=tf.float32)
        loss = tf.reduce_mean(each)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    return loss, each


@written(
    "control_flow/vectorised_map_over_samples",
    of_shape(5, 4),
    lambda: tf.Variable(tf.random.stateless_normal([4, 4], seed=[1, 2])),
)
def vectorised(w: Any, x: Any) -> Any:
    with tf.GradientTape() as tape:
        grams = tf.vectorized_map(lambda m: tf.matmul(m @ w, m @ w, transpose_a=True), x)
        loss = tf.reduce_mean(tf.linalg.logdet(grams + 2.0 * tf.eye(4)))
    w.assign_sub(0.1 * tape.gradient(loss, w))
    return loss


@written(
    "control_flow/scan_over_the_batch",
    to_regress(),
    lambda: tf.Variable(tf.random.stateless_normal([6, 4], seed=[1, 2])),
)
def scanned(w: Any, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        rows = tf.scan(lambda past, now: 0.7 * past + 0.3 * now, tf.tanh(x @ w))
        loss = tf.reduce_mean((y - rows) ** 2)
    w.assign_sub(0.2 * tape.gradient(loss, w))
    return loss, rows


@written(
    "control_flow/one_update_for_each_sample",
    to_regress(),
    lambda: tf.Variable(tf.random.stateless_normal([6, 4], seed=[1, 2])),
    sizes=(12, 12, 9, 12, 3),
)
def online(w: Any, x: Any, y: Any) -> Any:
    total = 0.0
    for i in tf.range(tf.shape(x)[0]):
        error = tf.linalg.matvec(w, x[i], transpose_a=True) - y[i]
        w.assign_sub(0.02 * x[i][:, None] * error[None])
        total += tf.reduce_sum(error**2)
    return total


@written(
    "control_flow/loop_until_the_batch_agrees",
    to_regress(),
    lambda: (
        tf.Variable(0.2 * tf.random.stateless_normal([4, 4], seed=[1, 2])),
        tf.Variable(0.5 * tf.random.stateless_normal([6, 4], seed=[3, 4])),
    ),
)
def fixed_point(w: Any, u: Any, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        z, change, rounds = tf.zeros_like(y), tf.constant(1.0), tf.constant(0)
        while change > 0.02 and rounds < 20:
            new = tf.tanh(z @ w + x @ u)
            change = tf.reduce_max(tf.abs(new - z))
            z = new
            rounds += 1
        loss = tf.reduce_mean((y - z) ** 2)
    of_w, of_u = tape.gradient(loss, [w, u])
    w.assign_sub(0.1 * of_w)
    u.assign_sub(0.1 * of_u)
    return loss, rounds


@written("control_flow/loop_with_break", to_regress(), lambda: trained(mlp(6, 8, 4)))
def with_break(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    done = 0
    for _ in tf.range(4):
        with tf.GradientTape() as tape:
            loss = squared(model, x, y)
        if loss < 0.8:
            break
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        done += 1
    return done


@case("control_flow/lengths_of_each_sample")
def lengths() -> BuiltStep:
    w = tf.Variable(0.4 * tf.random.stateless_normal([4, 4], seed=[1, 2]))

    def step(x: Any, length: Any) -> Any:
        with tf.GradientTape() as tape:
            state_now = tf.zeros([tf.shape(x)[0], 4])
            for time in tf.range(tf.reduce_max(length)):
                tf.autograph.experimental.set_loop_options(
                    shape_invariants=[(state_now, tf.TensorShape([None, 4]))]
                )
                new = tf.tanh(x[:, time] + state_now @ w)
                state_now = tf.where((time < length)[:, None], new, state_now)
            loss = tf.reduce_mean((state_now - x[:, 0]) ** 2)
        w.assign_sub(0.2 * tape.gradient(loss, w))
        return loss

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 6, 4), 1 + integers(rng, 6, n)

    return BuiltStep(step=step, batch=batch, variables=[w])


@learned("functions/forward_pass_recomputed", to_regress(), lambda: (mlp(6, 10, 8), mlp(8, 4)))
def recomputed(model: Any, head: Any, x: Any, y: Any) -> Any:
    hidden = tf.recompute_grad(lambda inputs: tf.tanh(model(inputs)))(x)
    return tf.reduce_mean((y - head(hidden)) ** 2)


@case("functions/gradient_of_its_own")
def custom_gradient() -> BuiltStep:
    @tf.custom_gradient
    def clipped(x: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            return tf.clip_by_norm(upstream, 0.2) + 0.01 * tf.reduce_mean(upstream, axis=0)

        return tf.identity(x), gradient

    @tf.custom_gradient
    def rounded(x: Any) -> Any:
        return tf.round(4.0 * x) / 4.0, lambda upstream: upstream

    model = mlp(6, 10, 4)

    def loss_of(x: Any, y: Any) -> Any:
        return tf.reduce_mean((y - clipped(model(rounded(x)))) ** 2)

    return learn(loss_of, model, to_regress())


@case("functions/functions_in_functions")
def nested() -> BuiltStep:
    model = mlp(6, 10, 4)
    optimizer = sgd(model.trainable_variables)

    @tf.function
    def forward(x: Any, y: Any) -> Any:
        return 0.5 * tf.reduce_mean((y - model(x)) ** 2)

    @tf.function(reduce_retracing=True)
    def update(gradients: Any) -> None:
        optimizer.apply(gradients, model.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = forward(x, y)
        update(tape.gradient(loss, model.trainable_variables))
        return loss

    return BuiltStep(step=step, batch=to_regress(), variables=state(model, optimizer))


@case("functions/compiled_function")
def compiled() -> BuiltStep:
    w = tf.Variable(tf.random.stateless_normal([6, 4], seed=[1, 2]))

    @tf.function(jit_compile=True)
    def forward(x: Any, y: Any, weight: Any) -> Any:
        error = y - tf.tanh(x @ weight)
        return tf.sqrt(tf.reduce_mean(error**2)), error

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss, error = forward(x, y, w)
        w.assign_sub(0.2 * tape.gradient(loss, w))
        return loss, error

    return BuiltStep(step=step, batch=to_regress(), variables=[w])


@case("functions/python_function_over_the_batch")
def python_function() -> BuiltStep:
    model = mlp(6, 10, 4)

    def ranks(values: np.ndarray) -> np.ndarray:
        return np.argsort(np.argsort(values, axis=0), axis=0).astype("float32") / len(values)

    def loss_of(x: Any, y: Any) -> Any:
        wanted = tf.numpy_function(ranks, [y], tf.float32)
        wanted.set_shape(y.shape)
        return tf.reduce_mean((wanted - model(x)) ** 2)

    return learn(loss_of, model, to_regress())


@learned(
    "functions/checked_and_printed",
    to_regress(),
    lambda: (mlp(6, 10, 4), tf.Variable(0, trainable=False)),
)
def checked(model: Any, count: Any, x: Any, y: Any) -> Any:
    tf.debugging.assert_equal(tf.shape(x)[0], tf.shape(y)[0])
    outputs = tf.ensure_shape(tf.debugging.check_numerics(model(x), "outputs"), [None, 4])
    loss = tf.reduce_mean((y - outputs) ** 2)
    count.assign_add(1)
    if count % 100 == 0:
        tf.print("step", count, "loss", loss)
    tf.debugging.assert_non_negative(loss)
    return loss


@learned(
    "functions/samples_refined_by_noisy_descent",
    to_regress(outputs=6),
    lambda: (mlp(6, 10, 1), keras.random.SeedGenerator(4)),
)
def langevin(energy: Any, seeds: Any, x: Any, start: Any) -> Any:
    made = start
    for _ in range(3):
        with tf.GradientTape() as tape:
            tape.watch(made)
            total = tf.reduce_sum(energy(made))
        noise = keras.random.normal(tf.shape(made), seed=seeds)
        made = made - 0.1 * tape.gradient(total, made) + 0.02 * noise
    real, false = energy(x), energy(tf.stop_gradient(made))
    loss = tf.reduce_mean(real) - tf.reduce_mean(false)
    loss += 0.1 * tf.reduce_mean(real**2 + false**2)
    return loss, made


def transitions(rng: Any, n: int) -> tuple[Any, ...]:
    """Return observations, actions, rewards, next observations and ends."""
    done = (rng.uniform(size=n) < 0.2).astype("float32")
    return normal(rng, n, 5), integers(rng, 4, n), normal(rng, n), normal(rng, n, 5), done


def log_of_chosen(logits: Any, actions: Any) -> Any:
    """Return the logarithms of the probabilities of the actions taken."""
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=logits)


@learned(
    "reinforcement/reinforce_with_normalised_returns",
    columns(normals(5), whole(4), normals()),
    lambda: mlp(5, 12, 4),
)
def reinforce(model: Any, observations: Any, actions: Any, returns: Any) -> Any:
    mean, deviation = tf.math.reduce_mean(returns), tf.math.reduce_std(returns)
    returns = (returns - mean) / (deviation + 0.01)
    return -tf.math.reduce_sum(log_of_chosen(model(observations), actions) * returns) / 10.0


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

    return BuiltStep(
        step=step, batch=columns(normals(5), whole(4), normals()), variables=state(model, optimizer)
    )


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

    return BuiltStep(
        step=step,
        batch=columns(normals(6, 5), whole(4, 6), normals(6)),
        variables=[*weights, *optimizer.variables],
    )


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
