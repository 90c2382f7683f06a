"""Which tensors of a trace are the same, so that only one of them is computed, kept and sent.

Half of the operations of a traced model are there for shapes: a gradient asks for the shape of
every tensor, and finds out what to sum up where two shapes were stretched to one. In a stack of
layers nearly all of these shapes are alike:

      Shape(x), Shape(x * gamma), ...                         one of them
      BroadcastGradientArgs((n, 32, 64), (64))                constants: nothing, and axes 0, 1
      Sum(x, no axes), Reshape(x, x's own shape), Identity    x
      the same operation on the same inputs                   one of them

TensorFlow finds most of this too, when a step runs first, in every function anew; but it then
neither traces faster nor keeps fewer tensors from forward to backward passes. No result changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import tensorflow as tf

from evener.engine.staged.stages.cut import in_order
from evener.engine.staged.stages.sizes import REDUCE, GraphSizes

Group = Hashable
"""Only operations of one group stand for each other."""

_GIVES_INPUT = frozenset("Identity PreventGradient StopGradient".split())
_MOST_BYTES = 4096


class Same:
    """The tensor that stands for each tensor of a graph.

    Args:
        graph: The graph; constants are added to it.
        group_of: The group of an operation.
        themselves: Identities of tensors that nothing else stands for.
    """

    def __init__(
        self,
        graph: tf.Graph,
        group_of: Callable[[tf.Operation], Group],
        themselves: Collection[int] = (),
    ) -> None:
        self._graph = graph
        self._group_of = group_of
        self._themselves = themselves
        self._sizes = GraphSizes()
        self._instead: dict[int, tf.Tensor] = {}
        self._first: dict[Hashable, tf.Operation] = {}
        self._constants: dict[Hashable, tf.Tensor] = {}
        for op in in_order(graph.get_operations()):
            self._sizes.add(op)
            if not (op.op_def.is_stateful or op.control_inputs or op.type == "Placeholder"):
                self._look_at(op)

    def of(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return the tensor that stands for a tensor: another one, or itself."""
        return self._instead.get(id(tensor), tensor)

    def _look_at(self, op: tf.Operation) -> None:
        outputs = self._constants_for(op) or self._input_for(op) or self._earlier(op)
        for tensor, other in zip(op.outputs, outputs, strict=True):
            if other is not tensor and id(tensor) not in self._themselves:
                self._instead[id(tensor)] = other

    def _constants_for(self, op: tf.Operation) -> Sequence[tf.Tensor]:
        """Return constants if all that an operation gives is known."""
        if op.type == "Const":
            return ()
        found = [self._sizes.numbers(tensor) for tensor in op.outputs]
        if any(numbers is None or any(abs(n) >= 2**31 for n in numbers) for numbers in found):
            return ()
        return [
            self._constant(numbers, tensor.dtype, tensor.shape.rank == 1)
            for tensor, numbers in zip(op.outputs, found, strict=True)
            if numbers is not None
        ]

    def _constant(self, numbers: Sequence[int], dtype: Any, is_vector: bool) -> tf.Tensor:
        key = (tuple(numbers), dtype, is_vector)
        if key not in self._constants:
            with self._graph.as_default(), tf.control_dependencies(None), tf.device(None):
                value = list(numbers) if is_vector else numbers[0]
                self._constants[key] = tf.constant(value, dtype, name="size")
                self._sizes.add(self._constants[key].op)
        return self._constants[key]

    def _input_for(self, op: tf.Operation) -> Sequence[tf.Tensor]:
        """Return the first input if the operation gives just that."""
        if not op.inputs or len(op.outputs) != 1:
            return ()
        given = self.of(op.inputs[0])
        if self._group_of(given.op) != self._group_of(op) or op.device != given.op.device:
            return ()
        return [given] if op.type in _GIVES_INPUT or self._changes_nothing(op) else ()

    def _changes_nothing(self, op: tf.Operation) -> bool:
        if op.type in ("Reshape", "BroadcastTo"):
            sizes = self._sizes.of(op.outputs[0])
            return sizes is not None and sizes == self._sizes.of(op.inputs[0])
        return op.type in REDUCE and self._sizes.numbers(op.inputs[1]) == []

    def _earlier(self, op: tf.Operation) -> Sequence[tf.Tensor]:
        """Return what an earlier operation gives that computes the same."""
        key = self._key(op)
        first = op if key is None else self._first.setdefault(key, op)
        return [self.of(tensor) for tensor in first.outputs]

    def _key(self, op: tf.Operation) -> Hashable | None:
        group: Group = self._group_of(op)
        if op.type == "Shape":
            sizes = self._sizes.of(op.inputs[0])
            if sizes is not None:
                return op.type, op.outputs[0].dtype, sizes, op.device, group
        definition = op.node_def
        if op.type == "Const":
            if definition.ByteSize() > _MOST_BYTES:
                return None
        attributes = sorted(definition.attr.items())
        return (
            op.type,
            tuple((k, v.SerializeToString()) for k, v in attributes if not k.startswith("_")),
            tuple(id(self.of(tensor)) for tensor in op.inputs),
            op.device,
            group,
        )
