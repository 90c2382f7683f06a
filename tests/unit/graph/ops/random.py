"""Random numbers: every device has the bits that one device would draw for its samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import keras
import tensorflow as tf

from unit.graph.ops.op_case import Arg, B, Draw, Drawn, OpCase, Shape, f32, i32, ints, positive

# The axis of the batch first, in the middle, last; alone; of one size and of several.
SHAPES: tuple[Shape, ...] = ((B,), (B, 3), (3, B), (2, B, 3), (2, 3, B), (B, 2, 5), (B, 1), (B, B))
ALGORITHMS = ("philox", "threefry", "auto_select")
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTS = ("int32", "int64", "uint32", "uint64")
SEED = (7, 11)


def size_of(draw: Draw, shape: Shape) -> Callable[[Any], Any]:
    """Draw how a program gives the shape: whole, by parts, with more axes, or of one axis."""

    def parts(x: Any) -> Any:
        sizes = tf.shape(x)
        return tf.stack([sizes[i] if size == B else size for i, size in enumerate(shape)])

    batch = shape.index(B)
    ways = {
        "whole": tf.shape,
        "parts": parts,
        "list": lambda x: [tf.shape(x)[i] if s == B else s for i, s in enumerate(shape)],
        "more": lambda x: tf.concat([tf.shape(x), [2]], 0),
        "kept": lambda x: [tf.shape(x)[batch], *(1 for _ in shape[1:])],
    }
    return ways[draw(st.sampled_from(sorted(ways)))]


def sized(name: str, make: Callable[[Draw], Callable[[Any, Any], Any]], **options: Any) -> OpCase:
    """A case of numbers of which the shape is that of an argument."""

    def draw(draw: Draw) -> Drawn:
        shape = draw(st.sampled_from(SHAPES))
        axes = tuple(axis for axis, size in enumerate(shape) if size == B)
        size, fn = size_of(draw, shape), make(draw)
        # A sum of parts has other bits than one sum.
        return Drawn(lambda x: fn(size(x), x), (f32(*shape, states=axes),))

    return OpCase(name, draw, exact=True, gradient=False, **options)


def uniform(dtype: str) -> Callable[[Draw], Callable[[Any, Any], Any]]:
    def make(draw: Draw) -> Callable[[Any, Any], Any]:
        alg = draw(st.sampled_from(ALGORITHMS))
        low, high = draw(st.sampled_from([(0, 1), (-2, 3), (0, 100)]))
        if dtype in INTS:
            low, high = draw(st.sampled_from([(0, 2), (3, 10), (0, 1000), (None, None)]))
        if dtype in ("uint32", "uint64"):
            # Of unsigned numbers only all bits can be drawn.
            low, high = None, None

        def fn(size: Any, x: Any) -> Any:
            return tf.random.stateless_uniform(size, SEED, low, high, dtype, alg)

        return fn

    return make


def normal(dtype: str) -> Callable[[Draw], Callable[[Any, Any], Any]]:
    def make(draw: Draw) -> Callable[[Any, Any], Any]:
        alg = draw(st.sampled_from(ALGORITHMS))
        draw_numbers = draw(
            st.sampled_from([tf.random.stateless_normal, tf.random.stateless_truncated_normal])
        )
        return lambda size, x: draw_numbers(size, SEED, 1.0, 2.0, dtype, alg)

    return make


def old(draw: Draw) -> Callable[[Any, Any], Any]:
    """The operations without a choice of the algorithm, as older graphs have them."""
    op, dtype = draw(
        st.sampled_from(
            [
                (tf.raw_ops.StatelessRandomUniform, tf.float32),
                (tf.raw_ops.StatelessRandomNormal, tf.float32),
                (tf.raw_ops.StatelessTruncatedNormal, tf.float64),
            ]
        )
    )
    return lambda size, x: op(shape=size, seed=list(SEED), dtype=dtype)


def seeds(draw: Draw) -> Callable[[Any, Any], Any]:
    """Several seeds out of one, as layers make them."""

    def fn(size: Any, x: Any) -> Any:
        first, second = tf.unstack(tf.random.split(list(SEED), 2))
        third = tf.random.fold_in(first, 5)
        return [tf.random.stateless_uniform(size, seed) for seed in (first, second, third)]

    return fn


def mask(draw: Draw) -> Callable[[Any, Any], Any]:
    """Dropout by hand."""
    rate = draw(st.sampled_from([0.2, 0.5]))

    def fn(size: Any, x: Any) -> Any:
        kept = tf.random.stateless_uniform(tf.shape(x), SEED) >= rate
        return tf.where(kept, x / (1 - rate), 0.0)

    return fn


def noise(draw: Draw) -> Callable[[Any, Any], Any]:
    return lambda size, x: x + 0.1 * tf.random.stateless_normal(tf.shape(x), SEED)


def of_keras(draw: Draw) -> Drawn:
    """Layers draw by a generator whose state is a variable: it goes on with every call."""
    shape = draw(st.sampled_from(SHAPES))
    axes = tuple(axis for axis, size in enumerate(shape) if size == B)
    size = size_of(draw, shape)
    name = draw(st.sampled_from(sorted(KERAS)))
    generator = keras.random.SeedGenerator(5)
    start = generator.state.numpy()

    def fn(x: Any) -> Any:
        first = KERAS[name](size(x), x, generator)
        return first, KERAS[name](size(x), x, generator), tf.identity(generator.state.value)

    args = (f32(*shape, states=axes),)
    return Drawn(fn, args, "any", reset=lambda: generator.state.assign(start))


def as_shape(size: Any) -> Any:
    return tuple(tf.unstack(size)) if isinstance(size, tf.Tensor) else tuple(size)


KERAS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "normal": lambda size, x, seed: keras.random.normal(as_shape(size), seed=seed),
    "uniform": lambda size, x, seed: keras.random.uniform(as_shape(size), -1, 2, seed=seed),
    "truncated_normal": lambda size, x, seed: keras.random.truncated_normal(
        as_shape(size), seed=seed
    ),
    "randint": lambda size, x, seed: keras.random.randint(as_shape(size), 2, 9, seed=seed),
    "dropout": lambda size, x, seed: keras.random.dropout(x, 0.4, seed=seed),
}


def per_sample(
    name: str,
    fn: Callable[..., Any],
    *args: Arg,
    tail: tuple[int, ...] = (),
    gradient: bool = False,
) -> OpCase:
    """A case of numbers whose law each sample gives; the size is that of the first argument."""

    def draw(draw: Draw) -> Drawn:
        def step(*given: Any) -> Any:
            return fn(tf.concat([tail, tf.shape(given[0])], 0), *given)

        return Drawn(step, args, "any")

    return OpCase(name, draw, exact=not gradient, gradient=gradient)


RATE = f32(B, 3, values=positive, states=(0, None))
BESIDE = f32(B, 3, values=positive, states=(0, None))

CASES: tuple[OpCase, ...] = (
    *(sized(f"uniform_{dtype}", uniform(dtype)) for dtype in (*FLOATS, *INTS)),
    *(sized(f"normal_{dtype}", normal(dtype)) for dtype in FLOATS),
    sized("old", old),
    sized("seeds", seeds),
    sized("mask", mask),
    sized("noise", noise),
    OpCase("keras", of_keras, exact=True, gradient=False),
    per_sample(
        "gamma", lambda size, a, b: tf.random.stateless_gamma(size, SEED, a, b), RATE, BESIDE
    ),
    per_sample(
        "gamma_of_several",
        lambda size, a: tf.random.stateless_gamma(size, SEED, a),
        RATE,
        tail=(2,),
    ),
    per_sample(
        "gamma_with_gradient",
        lambda size, a: tf.random.stateless_gamma(size, SEED, a),
        RATE,
        gradient=True,
    ),
    per_sample("poisson", lambda size, rate: tf.random.stateless_poisson(size, SEED, rate), RATE),
    per_sample(
        "binomial", lambda size, p: tf.random.stateless_binomial(size, SEED, 10.0, p / 2), RATE
    ),
    per_sample(
        "binomial_of_counts",
        lambda size, n, p: tf.random.stateless_binomial(size, SEED, tf.cast(n, tf.float32), p / 2),
        i32(B, 3, values=ints(1, 9)),
        RATE,
    ),
    per_sample(
        "categorical",
        lambda size, logits: tf.random.stateless_categorical(logits, 4, SEED),
        f32(B, 3, states=(0, None)),
    ),
    per_sample(
        "parameterized_normal",
        lambda size, mean, spread: tf.random.stateless_parameterized_truncated_normal(
            size, SEED, mean, spread, -2.0, 4.0
        ),
        RATE,
        BESIDE,
    ),
    per_sample(
        "shuffle",
        lambda size, x: tf.random.experimental.stateless_shuffle(x, SEED),
        f32(B, 3, states=(0,)),
    ),
    per_sample(
        "seed_of_data",
        lambda size, x: tf.random.stateless_uniform(size, tf.stack([tf.shape(x)[0], 3])),
        f32(B, 3, states=(0,)),
    ),
    per_sample(
        "noise_for_weights",
        lambda size, x, w: tf.matmul(x, w) * 0 + tf.random.stateless_normal([1, 4], SEED),
        f32(B, 3, states=(0,)),
        f32(3, 4, states=(None,)),
    ),
)
