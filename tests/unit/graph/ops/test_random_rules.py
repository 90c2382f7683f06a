"""Random numbers of parts are, bit by bit, the rows of what one device draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given

import evener
from evener.graph.dims import symbols_of
from evener.graph.nodes import Node
from evener.graph.ops import random
from evener.graph.ops.states import Numbers

Step = Callable[[tf.Tensor], Any]

SHARES = ([13, 4, 7], [4, 0, 5], [1, 0, 0])
SEED = (7, -11)
B = -1
# No axis in front of the batch; rows of a multiple of 4 elements, of one of 2, of neither.
CONTIGUOUS = ((B,), (B, 3), (B, 4), (B, 2, 3), (1, B, 5), (B, 1, 67))
SCATTERED = ((3, B), (2, B, 3), (2, 3, B))
FLOATS = ("float16", "bfloat16", "float32", "float64")
COUNTERS = ((0, 0), (2**64 - 1, 5), (2**64 - 9, 2**64 - 1))
RAW: Any = tf.raw_ops
CONTROL = ("StatelessWhile", "StatelessIf")


def on_one_device(step: Step, x: tf.Tensor) -> list[Any]:
    with tf.device("CPU:0"):
        return tf.nest.flatten(tf.function(step, autograph=False)(x))


def on_parts(step: Step, x: tf.Tensor, shares: Sequence[int]) -> tuple[list[Any], dict[Node, Any]]:
    """Return what a step gives on three devices, and what their parts compute of it."""
    step = tf.autograph.experimental.do_not_convert(step)
    distributed = evener.distribute(
        step, devices=["cpu:0", "cpu:1", "cpu:2"], shares=shares, in_axes=0
    )
    results = tf.nest.flatten(distributed(x))
    (trace,) = distributed._traces.steps
    return results, trace.partitioned.partition.sharding.decisions


def samples(shares: Sequence[int], *sizes: int) -> tf.Tensor:
    shape = (sum(shares), *sizes)
    return tf.constant(np.random.default_rng(3).uniform(0.2, 3, shape), "float32")


def are_equal(given: Sequence[Any], expected: Sequence[Any]) -> bool:
    assert len(given) == len(expected)
    return all(
        a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
        for a, b in zip(given, expected, strict=True)
    )


def check(step: Step, x: tf.Tensor, shares: Sequence[int]) -> dict[Node, Any]:
    results, decisions = on_parts(step, x, shares)
    assert are_equal(results, on_one_device(step, x))
    return decisions


def drawn_by_parts(decisions: dict[Node, Any]) -> list[bool]:
    """Return of every random operation of the parts whether they draw their own rows only."""
    found = []
    for node, decision in decisions.items():
        if node.op.startswith("Stateless") and node.op not in CONTROL:
            sizes = decision.inputs[0]
            assert isinstance(sizes, Numbers)
            found.append(any("b" in symbols_of(size) for size in sizes.sizes))
    return found


def whole(template: Sequence[int], x: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.shape(x)[0] if size == B else size for size in template])


def ints(dtype: str, low: int | None, high: int | None) -> Callable[..., Any]:
    def draw(shape: Any, seed: Any, alg: str = "auto_select") -> Any:
        return tf.random.stateless_uniform(shape, seed, low, high, dtype, alg)

    return draw


def floats(law: Callable[..., Any], dtype: str) -> Callable[..., Any]:
    return lambda shape, seed, alg="auto_select": law(shape, seed, dtype=dtype, alg=alg)


def old(name: str, dtype: str) -> Callable[..., Any]:
    """Return an operation without a counter; it takes no algorithm."""

    def draw(shape: Any, seed: Any, alg: str = "") -> Any:
        rest: dict[str, Any] = {"dtype": tf.as_dtype(dtype)}
        if name == "StatelessRandomUniformInt":
            rest = {"minval": tf.constant(-3, dtype), "maxval": tf.constant(1000, dtype)}
        return getattr(RAW, name)(shape=shape, seed=seed, **rest)

    return draw


LAWS: dict[str, Callable[..., Any]] = {
    **{f"uniform_{d}": floats(tf.random.stateless_uniform, d) for d in FLOATS},
    **{f"normal_{d}": floats(tf.random.stateless_normal, d) for d in FLOATS},
    **{f"truncated_{d}": floats(tf.random.stateless_truncated_normal, d) for d in FLOATS},
    **{f"ints_{d}": ints(d, -3, 1000) for d in ("int32", "int64")},
    **{f"bits_{d}": ints(d, None, None) for d in ("int32", "int64", "uint32", "uint64")},
    "old_uniform": old("StatelessRandomUniform", "float32"),
    "old_normal": old("StatelessRandomNormal", "float64"),
    "old_truncated": old("StatelessTruncatedNormal", "bfloat16"),
    "old_ints": old("StatelessRandomUniformInt", "int64"),
    "old_bits": old("StatelessRandomUniformFullInt", "uint32"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("law", LAWS)
@given(data=st.data())
def test_rows_are_those_of_one_device(law: str, data: st.DataObject) -> None:
    template = data.draw(st.sampled_from(CONTIGUOUS))
    shares = data.draw(st.sampled_from(SHARES))
    alg = data.draw(st.sampled_from(["auto_select", "philox"]))
    decisions = check(lambda x: LAWS[law](whole(template, x), SEED, alg), samples(shares), shares)
    assert all(drawn_by_parts(decisions)) and drawn_by_parts(decisions)


@pytest.mark.parametrize("law", ["uniform_float16", "normal_float64", "ints_int32", "old_normal"])
@given(template=st.sampled_from(SCATTERED), shares=st.sampled_from(SHARES))
def test_behind_another_axis_parts_draw_everything(
    law: str, template: tuple[int, ...], shares: list[int]
) -> None:
    decisions = check(lambda x: LAWS[law](whole(template, x), SEED), samples(shares), shares)
    assert drawn_by_parts(decisions) == [False]


@pytest.mark.parametrize("law", ["uniform_float32", "normal_float64", "truncated_float32"])
@given(counter=st.sampled_from(COUNTERS), template=st.sampled_from(CONTIGUOUS))
def test_the_lower_half_of_the_counter_carries(
    law: str, counter: tuple[int, int], template: tuple[int, ...]
) -> None:
    names = {"uniform": "RandomUniform", "normal": "RandomNormal", "truncated": "TruncatedNormal"}
    kind, dtype = law.split("_")
    operation = getattr(RAW, f"Stateless{names[kind]}V2")

    def step(x: tf.Tensor) -> Any:
        start, key = (tf.constant(np.array(k, np.uint64)) for k in (counter, [2**63 + 5]))
        return operation(
            shape=whole(template, x), key=key, counter=start, alg=1, dtype=tf.as_dtype(dtype)
        )

    assert drawn_by_parts(check(step, samples([13, 4, 7]), [13, 4, 7])) == [True]


@pytest.mark.parametrize("template", [(B, 4), (B, 3)])
@pytest.mark.parametrize("alg", ["auto_select", "philox"])
def test_one_block_too_far_is_seen(
    template: tuple[int, ...], alg: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = random.advanced_counter

    def wrong(builder: Any, node: Any, counter: str, blocks: str) -> str:
        increment = builder.constant(1, tf.uint64)
        blocks = builder.op("AddV2", [blocks, increment], {"T": tf.uint64})[0]
        return right(builder, node, counter, blocks)

    def step(x: tf.Tensor) -> Any:
        return LAWS["uniform_float32"](whole(template, x), SEED, alg)

    x, shares = samples([9]), [5, 1, 3]
    expected = on_one_device(step, x)
    assert are_equal(on_parts(step, x, shares)[0], expected)
    monkeypatch.setattr(random, "advanced_counter", wrong)
    assert not are_equal(on_parts(step, x, shares)[0], expected)


def test_large_draws() -> None:
    """Kernels divide large draws among threads; every thread counts from its own group."""
    shares = [1201, 1, 800]

    def step(x: tf.Tensor) -> Any:
        shape = whole((B, 131), x)
        return [LAWS[law](shape, SEED) for law in ("uniform_float32", "truncated_float64")]

    assert drawn_by_parts(check(step, samples(shares), shares)) == [True, True]


@given(shares=st.sampled_from(SHARES), dtype=st.sampled_from(["float16", "float32", "float64"]))
def test_gamma_of_every_samples_own(shares: list[int], dtype: str) -> None:
    def step(x: tf.Tensor) -> Any:
        alpha = tf.cast(x, dtype)
        several = tf.concat([[3], tf.shape(x)], 0)
        return [
            tf.random.stateless_gamma(tf.shape(x), SEED, alpha, dtype=dtype),
            tf.random.stateless_gamma(several, SEED, alpha, dtype=dtype),
            RAW.StatelessRandomGammaV2(shape=tf.shape(x), seed=SEED, alpha=alpha),
        ]

    assert drawn_by_parts(check(step, samples(shares, 5), shares)) == [True] * 3


@given(shares=st.sampled_from(SHARES))
def test_gamma_of_all_samples(shares: list[int]) -> None:
    def step(x: tf.Tensor) -> Any:
        return [tf.random.stateless_gamma(tf.shape(x), SEED, a) for a in (1.5, [0.5, 1.0, 2.5])]

    # Of several alphas, those of one sample are not side by side.
    assert drawn_by_parts(check(step, samples(shares, 3), shares)) == [True, False]


@given(shares=st.sampled_from(SHARES))
def test_operations_without_a_counter(shares: list[int]) -> None:
    def step(x: tf.Tensor) -> Any:
        shape = tf.shape(x)
        return [
            tf.random.stateless_poisson(shape, SEED, 2.5),
            tf.random.stateless_binomial(shape, SEED, 10.0, 0.3),
            tf.random.stateless_parameterized_truncated_normal(shape, SEED, 0.0, 1.0, -1.0, 2.0),
        ]

    assert drawn_by_parts(check(step, samples(shares, 3), shares)) == [False] * 3


@given(shares=st.sampled_from(SHARES))
def test_parameters_of_samples_are_gathered(shares: list[int]) -> None:
    def step(x: tf.Tensor) -> Any:
        return [
            tf.random.stateless_poisson(tf.shape(x), SEED, x),
            tf.random.stateless_categorical(x, 4, SEED),
        ]

    assert drawn_by_parts(check(step, samples(shares, 3), shares)) == []


@given(shares=st.sampled_from(SHARES))
def test_generators(shares: list[int]) -> None:
    """The key and the counter are read once; the parts draw from them, from any state on."""
    generator = tf.random.Generator.from_seed(1)

    def step(x: tf.Tensor) -> Any:
        return [generator.normal(tf.shape(x)), generator.uniform(tf.shape(x), 0, 9, tf.int64)]

    for lower in (0, -1):
        states = []
        for run in (on_one_device, lambda *args: on_parts(*args, shares)[0]):
            generator.reset([lower, 4, 9])
            states.append([*run(step, samples(shares, 3)), tf.identity(generator.state)])
        assert are_equal(*states)
    decisions = on_parts(step, samples(shares, 3), shares)[1]
    assert drawn_by_parts(decisions) == [True, True]
    assert all(node.op != "RngReadAndSkip" for node in decisions)


def test_an_algorithm_that_the_device_names() -> None:
    def step(x: tf.Tensor) -> Any:
        key, counter, alg = RAW.StatelessRandomGetKeyCounterAlg(seed=SEED)
        shape, asked = tf.shape(x), RAW.StatelessRandomGetAlg()
        uniform = RAW.StatelessRandomUniformV2(shape=shape, key=key, counter=counter, alg=alg)
        return uniform, RAW.StatelessRandomNormalV2(
            shape=shape, key=key, counter=counter, alg=asked
        )

    assert drawn_by_parts(check(step, samples([5, 1, 3], 3), [5, 1, 3])) == [True, True]


def test_an_algorithm_that_is_not_known() -> None:
    def step(x: tf.Tensor) -> Any:
        key, counter = RAW.StatelessRandomGetKeyCounter(seed=SEED)
        alg = tf.where(tf.reduce_sum(x) > 0, 1, 3)
        return RAW.StatelessRandomUniformV2(shape=tf.shape(x), key=key, counter=counter, alg=alg)

    assert drawn_by_parts(check(step, samples([5, 1, 3], 3), [5, 1, 3])) == [False]


def test_functions_of_xla_draw_everything() -> None:
    @tf.function(jit_compile=True, autograph=False)
    def compiled(x: tf.Tensor) -> Any:
        return tf.random.stateless_uniform(tf.shape(x), SEED)

    assert drawn_by_parts(on_parts(compiled, samples([5, 1, 3], 3), [5, 1, 3])[1]) == [False]


@given(shares=st.sampled_from(SHARES))
def test_loops_of_the_parts(shares: list[int]) -> None:
    def add(step: tf.Tensor, y: tf.Tensor) -> Any:
        return step + 1, y + tf.random.stateless_uniform(tf.shape(y), tf.stack([step, 5]))

    def step(x: tf.Tensor) -> Any:
        return tf.while_loop(lambda step, y: step < 4, add, [0, x])[1]

    assert any("While" in node.op for node in check(step, samples(shares, 3), shares))


def test_draws_that_have_no_samples_are_made_once() -> None:
    def step(x: tf.Tensor) -> Any:
        return x * tf.random.stateless_normal([1, 3], SEED)

    assert drawn_by_parts(check(step, samples([5, 1, 3], 3), [5, 1, 3])) == []
