"""A part of a graph as a function of its own.

The operations between what is fed and what is fetched are copied into a new function, which
is kept whole where it is called: TensorFlow would otherwise put its operations in place of
every call, so that the step grew with stages x micro-batches x layers, and would drop the
order in which the calls have to run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any

import tensorflow as tf

from evener import _tf_private

Instead = Callable[[tf.Tensor], tf.Tensor]
"""A tensor -> the tensor that stands for it."""


def itself(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor: nothing else stands for it."""
    return tensor


def operations_between(
    fetches: Iterable[tf.Tensor],
    is_fed: Callable[[tf.Tensor], bool],
    also: Iterable[tf.Operation] = (),
    same: Instead = itself,
) -> tuple[set[tf.Operation], list[tf.Tensor]]:
    """Return what has to be computed for some tensors, and what has to be fed.

    Args:
        fetches: Tensors of one graph.
        is_fed: Whether a tensor is fed and not computed.
        also: Operations that must run although nothing needs what they give.
        same: What stands for a tensor.

    Returns:
        Operations, and fed tensors in the order in which they were met.
    """
    operations: set[tf.Operation] = set()
    fed: dict[int, tf.Tensor] = {}
    waiting = [*also]
    operations.update(waiting)
    for tensor in fetches:
        _visit(same(tensor), is_fed, operations, fed, waiting)
    while waiting:
        for tensor in waiting.pop().inputs:
            _visit(same(tensor), is_fed, operations, fed, waiting)
    return operations, list(fed.values())


def _visit(
    tensor: tf.Tensor,
    is_fed: Callable[[tf.Tensor], bool],
    operations: set[tf.Operation],
    fed: dict[int, tf.Tensor],
    waiting: list[tf.Operation],
) -> None:
    if is_fed(tensor):
        fed.setdefault(id(tensor), tensor)
    elif tensor.op not in operations:
        operations.add(tensor.op)
        waiting.append(tensor.op)


def in_order(operations: Collection[tf.Operation], same: Instead = itself) -> list[tf.Operation]:
    """Return operations such that each comes after those it needs.

    Not always in the order in which they were made: the gradient of a loop gives the loop
    inputs that are made later.

    Args:
        operations: Of one graph.
        same: What stands for an operation's input.
    """
    among = frozenset(operations)
    before = {
        op: [o for o in (*(same(t).op for t in op.inputs), *op.control_inputs) if o in among]
        for op in operations
    }
    return list(TopologicalSorter(before).static_order())


class CutFunction:
    """A part of a graph as a function of the tensors that are fed.

    Args:
        operations: What it computes, in an order in which that can be done.
        feeds: Tensors of the graph that are its arguments.
        fetches: Tensors of the graph that it returns.
        captured: Placeholders of the graph and the outer tensors they stand for.
        later: Operations, and the tensors after which alone they may run.
        same: What stands for a tensor among the operations and the feeds.
        name: For the profiler.
        jit_compile: Whether XLA compiles it.

    Attributes:
        feeds: As given.
        fetches: As given.
        jit_compile: As given.
    """

    def __init__(
        self,
        operations: Sequence[tf.Operation],
        feeds: Sequence[tf.Tensor],
        fetches: Sequence[tf.Tensor],
        *,
        captured: Iterable[tuple[Any, tf.Tensor]] = (),
        later: Mapping[tf.Operation, Sequence[tf.Tensor]] | None = None,
        same: Instead = itself,
        name: str = "part",
        jit_compile: bool = False,
    ) -> None:
        self.feeds = tuple(feeds)
        self.fetches = tuple(fetches)
        self.jit_compile = jit_compile

        def body(*args: tf.Tensor) -> list[tf.Tensor]:
            copies = {id(placeholder): outer for outer, placeholder in captured}
            copies.update(zip(map(id, self.feeds), args, strict=True))
            copy_operations(operations, copies, later or {}, same)
            return [copies[id(same(tensor))] for tensor in self.fetches]

        body.__name__ = name
        self._function = tf.function(
            body,
            autograph=False,
            jit_compile=jit_compile or None,
            experimental_attributes={"_noinline": True},
        ).get_concrete_function(*[tf.TensorSpec(t.shape, t.dtype) for t in self.feeds])

    def __call__(self, args: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the fetches; ``args`` has one tensor for every feed."""
        return list(self._function(*args)) if self.fetches else []

    @property
    def graph(self) -> tf.Graph:
        """The graph of the function, for inspection."""
        return self._function.graph


def copy_operations(
    operations: Sequence[tf.Operation],
    copies: dict[int, Any],
    later: Mapping[tf.Operation, Sequence[tf.Tensor]],
    same: Instead = itself,
) -> dict[tf.Operation, tf.Operation]:
    """Copy operations into the graph that is being made; return the copy of each.

    Args:
        operations: In an order in which they can be computed.
        copies: The copy of every tensor that is there, by the tensor's identity; grows.
        later: Operations, and the tensors after which alone they may run.
        same: What stands for a tensor.
    """
    graph = tf.compat.v1.get_default_graph()
    copied: dict[tf.Operation, tf.Operation] = {}
    for op in operations:
        first = [copied[other] for other in op.control_inputs if other in copied]
        with tf.control_dependencies(first), tf.device(op.device):
            copy = graph.create_op(
                op.type,
                [copies[id(same(tensor))] for tensor in op.inputs],
                [tensor.dtype for tensor in op.outputs],
                name=op.name,
                # What it was to stand beside may not be in this part.
                attrs={k: v for k, v in op.node_def.attr.items() if k != "_class"},
            )
        copied[op] = copy
        copies.update((id(a), b) for a, b in zip(op.outputs, copy.outputs, strict=True))
    for op, tensors in later.items():
        gates = [copies[id(t)].op for t in map(same, tensors) if id(t) in copies]
        if op in copied and gates:
            _tf_private.run_after(copied[op], gates)
    return copied
