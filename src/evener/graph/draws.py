"""Draws from generators whose state is in a kernel, such as those of `tf.random.normal`.

Such a kernel counts what it has drawn, from the step's first run on: its *stream*. TensorFlow makes
new kernels, and so begins new streams, with each trace of the program's function. What is traced
here serves several of those, or only a part of the batches of one. So the count is taken out of the
kernels: a step is given the counters of its streams, and returns them as they are behind it::

    RandomUniform(shape)    ->    StatelessRandomUniform(shape, key, counters[k])
                                  counters[k] += 256 blocks for each number that is drawn

That is what the kernels do (`GuardedPhiloxRandom`), and the numbers are theirs, bit by bit. Draws
in loops and conditions, and of other laws, stay in their kernels.

Several workers run the kernels, and all take the numbers of one of them: generators without a seed
draw other numbers in every process. A step that is computed again draws again; so the numbers of
each kernel are a queue, from which a step takes the first ones that no step has used.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from evener.errors import EngineError
from evener.graph.functions import attribute
from evener.graph.nodes import Graph, Node, Tensor
from evener.graph.rewrites import CONDITIONS, LOOPS, bodies_of

DRAWS = "draws"  # Role of the tasks that run such kernels
# Operation, its two seeds, and how many with the same ones are before it in the step.
StreamName: TypeAlias = tuple[str, int, int, int]

_COUNTED = {
    "RandomUniform": "StatelessRandomUniformV2",
    "RandomUniformInt": "StatelessRandomUniformIntV2",
    "RandomStandardNormal": "StatelessRandomNormalV2",
    "TruncatedNormal": "StatelessTruncatedNormalV2",
}
_BLOCKS = 256  # Blocks of Philox that a kernel counts for each number
_PHILOX = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    # Argument of the graph: a row for each stream, the last output is the new ones
    counters: Tensor
    names: tuple[StreamName, ...]  # Name of each stream


class StreamState:
    """Random numbers of one trace that a program's function would have."""

    def __init__(self) -> None:
        self.draws_in_python = False
        self.is_first = True
        self._begin: Any = None
        self._names: tuple[StreamName, ...] = ()
        self._counters: Any = None
        self._rows: dict[StreamName, np.ndarray] = {}

    @contextlib.contextmanager
    def tracing(self, *, counts: bool) -> Iterator[None]:
        """Draw from Python's and NumPy's generators what the trace of the program draws.

        All traces in its place begin with the same numbers. One that the program would not make
        does not count, and leaves the generators as they are.
        """
        now = _generators()
        if self._begin is None:
            self._begin = now
        _set_generators(self._begin)
        try:
            yield
            counts &= self.is_first
        except BaseException:
            counts = False
            raise
        finally:
            self.draws_in_python |= _generators() != self._begin
            if not counts:
                _set_generators(now)

    def begin_again(self) -> None:
        """Note that the program's next trace is the one that runs."""
        if self.is_first:
            self._begin = _generators()

    def counters_of(self, names: tuple[StreamName, ...]) -> Any:
        if names != self._names:
            if self._names:
                self._rows.update(zip(self._names, self._counters.numpy(), strict=True))
            begins = [np.array([0, name[2]], np.int64).view(np.uint64) for name in names]
            pairs = zip(names, begins, strict=True)
            rows = np.stack([self._rows.get(name, begin) for name, begin in pairs])
            with tf.device("CPU:0"):
                self.advance(names, tf.constant(rows))
        return self._counters

    def advance(self, names: tuple[StreamName, ...], counters: Any) -> None:
        self._names, self._counters = names, counters


def _generators() -> tuple[Any, ...]:
    name, words, *rest = np.random.get_state(legacy=True)
    return random.getstate(), name, np.asarray(words).tobytes(), *rest


def _set_generators(state: tuple[Any, ...]) -> None:
    python, name, words, *rest = state
    random.setstate(python)
    np.random.set_state((name, np.frombuffer(words, np.uint32), *rest))


def take_streams_out(graph: Graph) -> Streams | None:
    """Give a step the counters of its streams, as far as they can be taken out of kernels."""
    drawn = [node for node in graph if node.op in _COUNTED and has_seed(node) and not node.xla]
    if not drawn:
        return None
    names: list[StreamName] = []
    for node in drawn:
        seeds = (node.op, node.int_attr("seed"), node.int_attr("seed2"))
        names.append((*seeds, sum(name[:3] == seeds for name in names)))
    shapes = [node.inputs[0] for node in drawn]

    def before(counters: tf.Tensor) -> Any:
        keys = np.array([[name[1]] for name in names], np.int64).view(np.uint64)
        rows = [counters[k] for k in range(len(names))]
        return [tf.constant(_PHILOX), *rows, *map(tf.constant, keys)]

    def behind(counters: tf.Tensor, *shapes: tf.Tensor) -> Any:
        counts = tf.stack([tf.reduce_prod(tf.cast(shape, tf.int64)) for shape in shapes])
        return counters + tf.cast(counts[:, None] * [[_BLOCKS, 0]], tf.uint64)

    nodes, graph.nodes = graph.nodes, []
    counters = graph.new_input(tf.TensorSpec([len(names), 2], tf.uint64))
    alg, *added = graph.add(before, [counters])
    own_counters, keys = added[: len(names)], added[len(names) :]
    graph.nodes += nodes
    for node, counter, key in zip(drawn, own_counters, keys, strict=True):
        shape, *limits = node.inputs
        node.inputs = [shape, key, counter, alg, *limits]
        node.attrs = {"dtype": attribute(node.outputs[0].dtype), "Tshape": attribute(shape.dtype)}
        node.op = _COUNTED[node.op]
    for node in nodes:
        node.after = node.after.difference(drawn)
    graph.outputs += graph.add(behind, [counters, *shapes])
    return Streams(counters=counters, names=tuple(names))


def draws(node: Node) -> bool:
    return node.is_stateful and any("seed" in name for name in node.attrs)


def has_seed(node: Node) -> bool:
    """Return whether the state of a drawing node begins with a fixed seed."""
    return any(node.int_attr(name) for name in ("seed", "seed2") if name in node.attrs)


def draws_from_seeds(graph: Graph) -> bool:
    """Return whether kernels of a graph, or in its bodies, draw and begin with a fixed seed."""
    bodies = (
        body
        for node in graph
        if node.op in LOOPS | CONDITIONS and not node.bodies
        for body in bodies_of(node, graph).values()
    )
    return any(draws(node) and has_seed(node) for node in graph) or any(
        map(draws_from_seeds, bodies)
    )


def has_hidden_draws(graph: Graph, *, is_inside: bool = False) -> bool:
    is_hidden = False
    for node in graph:
        if is_inside and draws(node):
            if not has_seed(node):
                raise EngineError(
                    "ENG-097",
                    f"A loop or a condition draws random numbers without a seed: {node.op}.",
                    why="Each worker would draw other numbers.",
                    fix="Call keras.utils.set_random_seed(1) at the start, or draw in front of the "
                    "loop.",
                )
            is_hidden = True
        if node.op in LOOPS | CONDITIONS:
            bodies = node.bodies or bodies_of(node, graph)
            is_hidden |= any([has_hidden_draws(b, is_inside=True) for b in bodies.values()])
    return is_hidden
