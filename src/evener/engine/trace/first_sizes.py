"""Arguments of a step with the same first size, where nobody knows the sizes yet.

A step that is traced for batches of any size is given tensors of unknown first sizes. Samples and
their labels have one size; the labelled and the unlabelled batch of two data sets that are zipped,
or the atoms and the bonds of molecules, have sizes of their own. The step itself says which: what
it adds, compares or joins has equal sizes on one device too.

::

    x [s0, 6]  y [s1]  u [s2, 6]        loss(y, model(x)) + penalty(model(u))
    s0 = s1 is needed, s2 is free       x [B, 6]  y [B]  u [s2, 6]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from evener.engine.trace.inference import Inference, Shape
from evener.graph.dims import BATCH, Dim, Size, product, substitute, symbols_of
from evener.graph.nodes import Graph, Node, Tensor
from evener.ops.registry import operation


@dataclass(slots=True)
class EqualSizes:
    """Finds sizes that are equal, while shapes are inferred.

    Attributes:
        arguments: The symbols of the first sizes of arguments.
        same_as: Another symbol that is equal, by symbol.
    """

    arguments: set[str]
    same_as: dict[str, str] = field(default_factory=dict)
    _to_maximum: dict[Tensor, Size] = field(default_factory=dict)

    def meet(self, node: Node) -> None:
        """Learn from what a node reads, whose shapes are then written in the first symbols."""
        for left, right in (*_equal_sizes(node), *self._broadcast(node)):
            self._learn(left, right)
        if self.same_as:
            for tensor in node.inputs:
                tensor.shape = self._known(tensor.shape)
                tensor.value = self._known(tensor.value)

    def first(self, name: str) -> str:
        """Return the symbol that stands for all that are equal to one."""
        while name in self.same_as:
            name = self.same_as[name]
        return name

    def _broadcast(self, node: Node) -> Iterable[tuple[Size, Size]]:
        """Return sizes of two tensors that are broadcast to the maximum of them.

        So Keras broadcasts tensors of unknown sizes, as in ``keras.ops.take_along_axis``.
        """
        shape = node.inputs[0].shape if node.op == "BroadcastTo" else None
        target = node.inputs[1].node if shape is not None else node
        if shape is None or target.op != "Pack":
            return
        for size, number in zip(reversed(shape), reversed(target.inputs), strict=False):
            if number.node.op == "Maximum":
                other = self._to_maximum.setdefault(number, size)
                if {tensor.value for tensor in number.node.inputs} == {(size,), (other,)}:
                    yield other, size
                    # The maximum is that size as well.
                    for largest in number.value or ():
                        self.arguments |= symbols_of(largest)
                        yield size, largest

    def _learn(self, left: Size, right: Size) -> None:
        left, right = self._known((left, right)) or (left, right)
        only_left = (symbols_of(left) - symbols_of(right)) & self.arguments
        only_right = (symbols_of(right) - symbols_of(left)) & self.arguments
        if len(only_left) != 1 or len(only_right) != 1:
            return
        names = sorted((only_left.pop(), only_right.pop()), key=lambda name: int(name[1:]))
        before, after = names
        if substitute(left, {after: before}) == substitute(right, {after: before}):
            self.same_as[after] = before

    def _known(self, sizes: Shape | None) -> Shape | None:
        if sizes is None:
            return None
        names = {name: self.first(name) for name in self.same_as}
        return tuple(substitute(size, names) for size in sizes)


def find_first_sizes(graph: Graph, unknown: Sequence[int], num_samples: int | None) -> list[int]:
    """Return for each of some arguments the first of them that has the same size.

    Args:
        graph: The step.
        unknown: The arguments whose first size is not known.
        num_samples: The size of all batches, if it is known.
    """
    inference = Inference(num_samples=num_samples)
    for tensor in graph.inputs:
        inference.input_shape(tensor, None, BATCH)
    symbols = {index: _symbol(graph.inputs[index]) for index in unknown}
    found = EqualSizes({name for name in symbols.values() if name})
    inference.meet = found.meet
    inference.run(graph)
    firsts: dict[str, int] = {}
    return [firsts.setdefault(found.first(symbols[index]), index) for index in unknown]


def _symbol(tensor: Tensor) -> str:
    size = tensor.shape[0] if tensor.shape else 0
    return next(iter(symbols_of(size)), f"known {id(tensor)}")


def batch_of(graph: Graph, unknown: Sequence[int], firsts: Sequence[int]) -> int:
    """Return which first size is that of the batch: of the arguments with most numbers in a row."""

    def elements(index: int) -> int:
        shape = graph.inputs[index].shape or ()
        count = product(size for size in shape[1:] if isinstance(size, int))
        assert isinstance(count, int)
        return count

    totals: dict[int, int] = {}
    for index, first in zip(unknown, firsts, strict=True):
        totals[first] = totals.get(first, 0) + elements(index)
    return max(totals, key=lambda first: totals[first])


def fits_one_batch_size(graph: Graph) -> bool:
    """Return whether a step adds, compares or joins its samples with a number of rows.

    Such as labels of 32 rows: then it runs with batches of 32 samples alone, on one device too.

    Args:
        graph: The step, or a body of it, with shapes.
    """
    return any(
        any(_fixes_batch(*sizes) for sizes in _equal_sizes(node))
        or any(map(fits_one_batch_size, node.bodies.values()))
        for node in graph
    )


def _fixes_batch(left: Size, right: Size) -> bool:
    # A size of 1 is broadcast.
    is_known = symbols_of(left) | symbols_of(right) == symbols_of(BATCH)
    return is_known and 1 not in (left, right) and isinstance(left - right, Dim)


def _equal_sizes(node: Node) -> Iterable[tuple[Size, Size]]:
    """Return pairs of sizes that a kernel needs to be equal."""
    rule = operation(node.op).equal_sizes
    return () if rule is None else rule(node)
