"""Gradients run where their forward operations ran, and are what they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from evener import pinned_gradients
from multi_device.pinned_models import KINDS, pinned, unpinned
from multi_device.placed import at, eager_devices, strayed, unnamed, values, working_gradients


def close(got: Any, wanted: Any) -> None:
    """Compare to 1e-6 of the largest number."""
    assert len(got) == len(wanted)
    for gradient, expected in zip(got, wanted, strict=True):
        assert (gradient is None) == (expected is None)
        if gradient is not None:
            np.testing.assert_allclose(
                gradient, expected, rtol=1e-6, atol=1e-6 * max(1, abs(expected).max())
            )


def model_step(model: keras.Model, x: tf.Tensor) -> Callable[[], list[Any]]:
    def step() -> list[Any]:
        with tf.GradientTape() as tape:
            y = model(x, training=True)
            with at(2):
                loss = tf.reduce_mean(tf.square(y))
        return tape.gradient(loss, model.trainable_variables)

    return step


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_gradients_of_a_model_stay_on_the_devices_of_its_layers(kind: Any) -> None:
    plain, x = kind(unpinned)
    plain(x)
    model, _ = kind(pinned)
    model(x)
    model.set_weights(plain.get_weights())
    homes = [variable.value.device[-5:] for variable in model.trainable_variables]
    assert homes == [f"CPU:{_number(variable)}" for variable in model.trainable_variables]
    wanted = values(model_step(plain, x)())
    step = tf.function(model_step(model, x))
    audit = evener.audit(step)
    assert {o.device for o in working_gradients(audit)} == {"cpu:1", "cpu:2"}
    assert not strayed(audit)
    assert not unnamed(audit)
    close(values(step()), wanted)
    with tf.GradientTape() as tape:
        y = model(x, training=True)
        with at(2):
            loss = tf.reduce_mean(tf.square(y))
    gradients, devices = eager_devices(lambda: tape.gradient(loss, model.trainable_variables))
    assert devices == {"cpu:1", "cpu:2"}
    assert [_device(g) for g in gradients] == homes
    close(values(gradients), wanted)


def _number(variable: Any) -> int:
    at1, at2 = variable.path.rfind("at1"), variable.path.rfind("at2")
    return 1 if at1 > at2 else 2


def _device(gradient: Any) -> str:
    return getattr(gradient, "values", gradient).backing_device[-5:]


class Weights:
    """Two weights on two devices, and what is computed of them there."""

    def __init__(self, place: Callable[[int], Any]) -> None:
        random = np.random.default_rng(1)
        self.at = place

        def weight(number: int, *shape: int) -> tf.Variable:
            with place(number):
                return tf.Variable(random.normal(size=shape).astype("f") * 0.3)

        self.first, self.second = weight(1, 4, 4), weight(2, 4, 4)
        self.bias, self.table = weight(1, 4), weight(1, 9, 4)
        self.all = [self.first, self.second, self.bias, self.table]
        self.x = tf.constant(random.normal(size=(3, 4)), tf.float32)

    def on_first(self, x: Any) -> Any:
        with self.at(1):
            return tf.tanh(x @ self.first + self.bias)

    def on_second(self, x: Any) -> Any:
        with self.at(2):
            return tf.tanh(x @ self.second)

    def end(self, x: Any) -> Any:
        with self.at(2):
            return tf.reduce_sum(x * x)


def nested_functions(w: Weights) -> Any:
    inner = tf.function(lambda h: w.on_second(w.on_first(h)))
    outer = tf.function(lambda h: w.end(inner(w.on_first(h))))
    return outer(w.on_first(w.x))


def function_on_a_device(w: Weights) -> Any:
    function = tf.function(lambda h, weight: tf.tanh(h @ weight))
    with w.at(1):
        h = function(w.x, w.first)
    with w.at(2):
        h = function(h, w.second)
    return w.end(h)


def branches(w: Weights) -> Any:
    yes = tf.reduce_sum(w.x) > -1e9
    h = tf.cond(yes, lambda: w.on_first(w.x), lambda: w.on_second(w.x))
    return w.end(tf.cond(yes, lambda: w.on_second(h), lambda: w.on_first(h)))


def loop(w: Weights) -> Any:
    def body(k: Any, h: Any) -> tuple[Any, Any]:
        return k + 1, w.on_second(w.on_first(h))

    return w.end(tf.while_loop(lambda k, h: k < 3, body, (0, w.x))[1])


def loop_of_branches(w: Weights) -> Any:
    def body(k: Any, h: Any) -> tuple[Any, Any]:
        return k + 1, tf.cond(k % 2 == 0, lambda: w.on_first(h), lambda: w.on_second(h))

    return w.end(tf.while_loop(lambda k, h: k < 3, body, (0, w.x))[1])


def recomputed(w: Weights) -> Any:
    with w.at(1):
        h = tf.recompute_grad(w.on_first)(w.x)
    return w.end(w.on_second(h))


def own_gradient(w: Weights) -> Any:
    @tf.custom_gradient
    def doubled(h: Any) -> Any:
        return tf.tanh(h) * 2.0, lambda d: d * tf.exp(-h * h)

    with w.at(1):
        h = doubled(w.x @ w.first)
    return w.end(w.on_second(h))


def slices(w: Weights) -> Any:
    ids = tf.constant([[1, 2, 2], [3, 1, 0]])
    with w.at(1):
        h = tf.nn.embedding_lookup(w.table, ids) + tf.gather(w.table, ids)
    return w.end(w.on_second(tf.reshape(h, [-1, 4])))


def repeated_names(w: Weights) -> Any:
    h = w.x
    for _ in range(3):
        h = w.on_second(w.on_first(h))
    return w.end(h)


def unused_branches(w: Weights) -> Any:
    with w.at(1):
        left, _ = tf.split(w.on_first(w.x), 2, axis=1)
        some = tf.unstack(w.bias)[0]
    with w.at(2):
        return tf.reduce_sum(left) * some


def uses_on_both(w: Weights) -> Any:
    h = w.on_first(w.x)
    g = w.on_second(h)
    with w.at(1):
        back = tf.tanh(h @ w.first)
    with w.at(2):
        return tf.reduce_sum(g * back * h)


CASES = (
    nested_functions,
    function_on_a_device,
    branches,
    loop,
    loop_of_branches,
    recomputed,
    own_gradient,
    slices,
    repeated_names,
    unused_branches,
    uses_on_both,
)


@pytest.fixture(scope="module")
def placed() -> Weights:
    return Weights(at)


@pytest.fixture(scope="module")
def plain() -> Weights:
    return Weights(lambda number: tf.name_scope(f"plain{number}"))


def gradients(case: Callable[[Weights], Any], w: Weights) -> list[Any]:
    with tf.GradientTape() as tape:
        y = case(w)
    return tape.gradient(y, w.all)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_gradients_stay_in_every_construct(
    case: Callable[[Weights], Any], placed: Weights, plain: Weights
) -> None:
    wanted = values(gradients(case, plain))

    @tf.function(autograph=False)
    def step() -> list[Any]:
        return [g for g in gradients(case, placed) if g is not None]

    audit = evener.audit(step)
    assert working_gradients(audit)
    assert not strayed(audit)
    assert not unnamed(audit)
    close(values(step()), [g for g in wanted if g is not None])
    with tf.GradientTape() as tape:
        y = case(placed)
    eager, devices = eager_devices(lambda: tape.gradient(y, placed.all))
    assert devices <= {"cpu:1", "cpu:2"}
    close(values(eager), wanted)
    if case is not nested_functions:  # What a function on two devices returns goes through one.
        for gradient, variable in zip(eager, placed.all, strict=True):
            assert gradient is None or _device(gradient) == variable.device[-5:]


@pytest.mark.parametrize("case", [loop, branches, nested_functions], ids=lambda c: c.__name__)
def test_symbolic_gradients_stay_too(
    case: Callable[[Weights], Any], placed: Weights, plain: Weights
) -> None:
    @tf.function(autograph=False)
    def step() -> list[Any]:
        return pinned_gradients(case(placed), placed.all[:2])

    audit = evener.audit(step)
    assert working_gradients(audit)
    assert not strayed(audit)
    close(values(step()), values(gradients(case, plain))[:2])


@pytest.mark.parametrize("eagerly", [False, True])
def test_second_order_and_persistent_tapes(eagerly: bool, placed: Weights, plain: Weights) -> None:
    def step(w: Weights) -> list[Any]:
        with tf.GradientTape(persistent=True) as outer:
            with tf.GradientTape() as tape:
                y = uses_on_both(w)
            first = tape.gradient(y, w.first)
            with w.at(1):
                squares = tf.reduce_sum(first * first)
        return [outer.gradient(squares, w.first), *outer.gradient(y, [w.first, w.second])]

    wanted = values(step(plain))
    if eagerly:
        got, devices = eager_devices(lambda: step(placed))
        assert devices == {"cpu:1", "cpu:2"}
    else:
        function = tf.function(lambda: step(placed), autograph=False)
        audit = evener.audit(function)
        assert working_gradients(audit)
        assert not strayed(audit)
        got = function()
    close(values(got), wanted)


def test_sums_are_made_where_the_parts_or_the_variable_are(placed: Weights) -> None:
    @tf.function(autograph=False)
    def step() -> list[Any]:
        with tf.GradientTape() as tape:
            h = placed.on_first(placed.x)
            with at(2):
                y = tf.reduce_sum(tf.sin(h) * tf.cos(h)) + tf.reduce_sum(placed.first * 2.0)
        return tape.gradient(y, [placed.first])

    sums = {o.device for o in evener.audit(step).operations if o.type.startswith("AddN")}
    # Both parts of h are on device 2: one tensor moves. Those of the weight are on both.
    assert sums == {"cpu:1", "cpu:2"}
