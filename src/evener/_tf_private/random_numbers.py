"""Seeds and generators of random numbers, and determinism."""

from __future__ import annotations

import contextlib
import inspect
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import config, random_seed

from evener._tf_private.patches import Patch, wrap_with
from evener._tf_private.tensors import DRAWING, TRACED_CALLS

_NUMPY = Patch(
    "unseeded generators of NumPy",
    "numpy.random:default_rng",
    why="Such a generator begins with a seed of the operating system, another one in each worker.",
    if_it_changes="Programs that draw their data by it are refused, because the data differ.",
)


# The seed that `tf.random.set_seed` has set, or None.
# Why: there is no public way to read it. If it changes: workers replace a seed that the program has
# set by one of their own.
global_seed: Callable[[], int | None] = eager_context.global_seed


def seed_new_generators(draw: Callable[[], Any]) -> None:
    """Give generators that `numpy.random.default_rng` makes without a seed a drawn one."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def default_rng(seed: Any = None) -> Any:
            return original(draw() if seed is None else seed)

        default_rng.__doc__ = original.__doc__
        return default_rng

    _NUMPY.apply(wrap)


# Whether `tf.config.experimental.enable_op_determinism` was called.
# Why: operations that read the clock fail then, and there is no public getter.
# If it changes: steps on several devices fail where it was called.
is_deterministic: Callable[[], bool] = config.is_op_determinism_enabled


def operation_seeds() -> Any:
    """Return the state from which TensorFlow draws seeds for eager random operations.

    Why: there is no public getter, and an audit must not change what comes after it.
    If it changes: a program with an audit draws other random numbers than one without.
    """
    # Made at the first call of `tf.random.set_seed`.
    rng = getattr(eager_context.context(), "_rng", None)
    return None if rng is None else rng.getstate()


def set_operation_seeds(state: Any) -> None:
    """Put back what `operation_seeds` returned."""
    if state is not None:
        eager_context.context()._rng.setstate(state)


@contextlib.contextmanager
def counting_traced_draws() -> Iterator[Callable[[], int]]:
    """Yield a function that tells how many draws without a generator were traced in the block."""
    num_draws = 0

    def get_seed(original: Callable[..., Any], op_seed: Any) -> Any:
        nonlocal num_draws
        num_draws += not tf.executing_eagerly()
        return original(op_seed)

    with TRACED_CALLS.applied_each({"get_seed": get_seed}):
        yield lambda: num_draws


_KERNELS = {
    "random_standard_normal": tf.raw_ops.StatelessRandomNormalV2,
    "random_uniform": tf.raw_ops.StatelessRandomUniformV2,
    "random_uniform_int": tf.raw_ops.StatelessRandomUniformIntV2,
    "truncated_normal": tf.raw_ops.StatelessTruncatedNormalV2,
}
_DRAW = -1


def next_seeds(num_draws: int) -> list[tf.Tensor]:
    """Return the seeds of the next eager draws as scalars: the first, and the second of each.

    Why: the numbers of a hoisted step are those that its eager calls would have drawn.
    If it changes: a hoisted step that draws differs from the eager one, and is not used.
    """
    with global_seed_for_now():
        pairs = [random_seed.get_seed(None) for _ in range(num_draws)]
    seeds = (*(first for first, _ in pairs[:1]), *(second for _, second in pairs))
    return [tf.constant(seed, tf.int64) for seed in seeds]


@contextlib.contextmanager
def global_seed_for_now() -> Iterator[None]:
    """Set a global seed until the end of the block, if there is none.

    Why: eager draws without any seed cannot be repeated, and `tf.random.set_seed` would restart all
    generators. If it changes: such steps differ from the eager ones, and run as they are written.
    """
    context: Any = eager_context.context()
    if context._seed is not None:
        yield
        return
    rng, context._seed = getattr(context, "_rng", None), secrets.randbits(30)
    context._rng = random.Random(context._seed)
    try:
        yield
    finally:
        context._seed, context._rng = None, rng


@contextlib.contextmanager
def drawing_by(seeds: Sequence[tf.Tensor]) -> Iterator[Callable[[], int]]:
    """Let draws in the current graph have the numbers of eager draws with seeds of `next_seeds`."""
    graph, num_draws = tf.compat.v1.get_default_graph(), 0

    def get_seed(original: Callable[..., Any], op_seed: Any) -> Any:
        nonlocal num_draws
        if op_seed is not None or tf.compat.v1.get_default_graph() is not graph:
            return original(op_seed)
        num_draws += 1
        return num_draws, _DRAW

    def draw(original: Callable[..., Any], *args: Any, seed=0, seed2=0, **kwargs: Any) -> Any:
        if seed2 != _DRAW or seed >= len(seeds):
            return original(*args, seed=seed, seed2=seed2, **kwargs)
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        key = tf.bitcast(tf.stack(seeds[:1]), tf.uint64)
        counter = tf.bitcast(tf.stack([tf.zeros([], tf.int64), seeds[seed]]), tf.uint64)
        return _KERNELS[original.__name__](**given, key=key, counter=counter, alg=1)

    with TRACED_CALLS.applied_each({"get_seed": get_seed, **dict.fromkeys(DRAWING, draw)}):
        yield lambda: num_draws


def num_drawing_operations() -> int:
    """Return how many operations of the graph that is being made have taken a seed by their number.

    Why: such an operation draws by its number in its graph, and there is no public getter.
    If it changes: no step can be called in a function.
    """
    return random_seed._graph_to_seed_dict.get(tf.compat.v1.get_default_graph(), 0)


@contextlib.contextmanager
def counting_from(first: int | None) -> Iterator[None]:
    """Number operations that draw as if they were made in the outer graph, from a number on."""
    graph: Any = tf.compat.v1.get_default_graph()
    numbers = random_seed._graph_to_seed_dict
    if first is not None:
        numbers[graph] = first
    yield
    if first is not None:
        numbers[graph.outer_graph] = numbers[graph]


_DRAWS = Patch(
    "generators of a strategy",
    "tensorflow.python.ops.stateful_random_ops:Generator._preprocess_key",
    why="Such a generator adds the number of its replica to its key, in a step, so that replicas "
    "draw other numbers. Here one replica stands for one device, which adds nothing.",
    if_it_changes="Numbers of such a generator are not those of the program without a strategy.",
)


def draw_as_one_device(kind: type[tf.distribute.Strategy]) -> None:
    """Let generators that are made in the scope of such a strategy draw as outside of it."""

    def preprocess_key(original: Callable[..., Any], generator: Any, key: Any) -> Any:
        return (
            key if isinstance(generator._distribution_strategy, kind) else original(generator, key)
        )

    _DRAWS.apply(wrap_with(preprocess_key))
