"""Symbolic shapes of all tensors of a traced step, and the numbers in its small integer tensors.

TensorFlow knows the sizes that are the same in every step. What it calls unknown (``None``) is
found here: from the batch size, through shapes that a program computes itself. A size that cannot
be found gets a symbol of its own, which equals nothing else. Loops over rows, as `tf.map_fn` makes
them, are recognised with the shapes of their bodies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from evener.graph.dims import BATCH, Dim, Size, evaluate, is_at_least, per_sample, symbols_of
from evener.graph.nodes import Graph, Node, Role, RowLoop, SymbolTable, Tensor
from evener.graph.ops.lists import UNLIKE_ELEMENTS, any_length, list_length, origin
from evener.graph.ops.registry import Shape, Trait, has_trait, operation, truth_of
from evener.graph.ops.states import UnknownError, known, numbers_of, require
from evener.graph.rewrites import LOOPS, num_leading

# Loops over rows, as `tf.map_fn` makes them: a round has one row of lists, and no other.
#
# ::
#
#     i = 0, 1 .. n - 1      x = read(list, i)   ...   written = write(written, i, f(x))
#                            push(i), push(f(x))       kept for the gradient
#
#     the gradient           i = pop(), y = pop()      the rows from the last to the first
#                            write(d, i, g(read(d, i), y)), sum += h(..)
#
# A part can run such a loop over its own rows. What is certain to be so is found here: all rounds
# have a row of their own, and hand nothing on but lists of rows, and sums.

_SUMS = frozenset({"Add", "AddN", "AddV2"})


def find_row_loop(node: Node) -> RowLoop | None:
    if node.op not in LOOPS or not node.bodies:
        return None
    try:
        return _RowLoopFinder(node).find()
    except UnknownError:
        return None


class _RowLoopFinder:
    """Finds the roles of the arguments, and holds the body to them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._body: Graph = node.bodies["body"]
        self._uses: dict[Tensor, list[tuple[Node | None, int]]] = defaultdict(list)
        for user in self._body:
            if not has_trait(user, Trait.COPY):
                for index, tensor in enumerate(user.inputs):
                    self._uses[origin(tensor)].append((user, index))
        for index, tensor in enumerate(self._body.outputs):
            self._uses[origin(tensor)].append((None, index))
        self._roles: list[Role] = []
        self._at_rows: dict[Node, int] = {}
        self._made: set[Node] = set()
        self._indices: set[int] = set()
        self._tests: set[Node] = set()
        self._counts: set[Size] = set()

    def find(self) -> RowLoop:
        """Return what the loop does; raise `UnknownError` where it is not certain."""
        self._roles = [known(self._simple_role(k)) for k in range(len(self._body.inputs))]
        self._find_tests(self._node.bodies["cond"].outputs[0])
        require(len(self._counts) == 1)
        (count,) = self._counts
        require(isinstance(count, Dim))
        for index in [k for k, role in enumerate(self._roles) if role is Role.WRITTEN]:
            self._follow(index)
        self._find_reads()
        if Role.POPPED in self._roles:
            counters = [k for k, role in enumerate(self._roles) if role is Role.COUNTER]
            # Rows from the last to the first have other numbers than the rounds of a part.
            require(Role.PUSHED not in self._roles and all(map(self._only_counts, counters)))
        require(all(map(self._is_at_row, self._at_rows)))
        # Lists that change have as many elements as there are rounds.
        for role, given in zip(self._roles, self._node.inputs, strict=True):
            if role is Role.PUSHED:
                require(origin(given).node.op == "EmptyTensorList")
            elif role in (Role.WRITTEN, Role.POPPED):
                require(list_length(given) in self._counts)
        return RowLoop(
            count=count,
            roles=tuple(self._roles),
            tests=frozenset(self._tests),
            at_rows=self._at_rows,
            made=frozenset(self._made),
            indices=frozenset(self._indices),
        )

    def _role_of(self, tensor: Tensor, arguments: Sequence[Tensor]) -> Role | None:
        return self._roles[arguments.index(tensor)] if tensor in arguments else None

    def _simple_role(self, index: int) -> Role | None:
        """Return a role; of a list that changes ``WRITTEN``, whatever changes it."""
        before, after = self._body.inputs[index], origin(self._body.outputs[index])
        if after is before:
            return Role.SAME
        if before.dtype == tf.variant:
            return Role.WRITTEN
        node = after.node
        if self._node.inputs[index].value == (0,) and node.op in ("Add", "AddV2"):
            sides = [origin(tensor) for tensor in node.inputs]
            if before in sides and any(tensor.value == (1,) for tensor in node.inputs):
                return Role.COUNTER
        return Role.SUM if self._is_sum(index) else None

    def _is_sum(self, index: int) -> bool:
        """Return whether a round only adds to an argument: nothing else reads it."""
        tensor = self._body.inputs[index]
        if not (tensor.dtype.is_floating or tensor.dtype.is_complex or tensor.dtype.is_integer):
            return False
        while True:
            if self._uses[tensor] == [(None, index)]:
                return True
            if len(self._uses[tensor]) != 1:
                return False
            ((node, _),) = self._uses[tensor]
            if node is None or node.op not in _SUMS or node.outputs[0].shape != tensor.shape:
                return False
            tensor = node.outputs[0]

    def _find_tests(self, tensor: Tensor) -> None:
        """Find the comparisons of a condition that only compares counters with known numbers."""
        node, arguments = origin(tensor).node, self._node.bodies["cond"].inputs
        if node.op == "LogicalAnd":
            for part in node.inputs:
                self._find_tests(part)
            return
        require(node.op == "Less")
        counter, limit = map(origin, node.inputs)
        require(self._role_of(counter, arguments) is Role.COUNTER)
        if limit in arguments:
            require(self._role_of(limit, arguments) is Role.SAME)
            limit = self._node.inputs[arguments.index(limit)]
        self._counts |= set(numbers_of(limit))
        self._tests.add(node)

    def _follow(self, index: int) -> None:
        """Follow a list through a round, in which only the row of the round may change."""
        tensor, changes = self._body.inputs[index], set[str]()
        while True:
            changing: list[tuple[Node | None, int]] = []
            for node, position in self._uses[tensor]:
                if node is not None and node.op == "TensorListGetItem":
                    self._at_rows[node] = index
                elif node is None or not _asks_a_size(node):
                    changing.append((node, position))
            require(len(changing) == 1)
            ((node, position),) = changing
            if node is None:
                require(position == index)
                self._set_role(index, changes)
                return
            self._follow_change(node, position, index)
            changes.add(node.op)
            tensor = node.outputs[0]

    def _follow_change(self, node: Node, position: int, index: int) -> None:
        if node.op == "TensorListSetItem":
            self._at_rows[node] = index
            require(position == 0 and not node.bool_attr("resize_if_index_out_of_bounds"))
        elif node.op == "AddN":
            for number, other in enumerate(node.inputs):
                if number != position:
                    self._follow_made(origin(other), index)
        elif node.op == "TensorListPushBack" and position == 0:
            if self._role_of(origin(node.inputs[1]), self._body.inputs) is Role.COUNTER:
                self._indices.add(index)
        else:
            require(node.op == "TensorListPopBack")

    def _follow_made(self, tensor: Tensor, index: int) -> None:
        """Hold a list to be made in this round, and to have the row of the round alone."""
        write = tensor.node
        require(write.op == "TensorListSetItem" and len(self._uses[tensor]) == 1)
        fresh = origin(write.inputs[0])
        require(fresh.node.op == "TensorListReserve" and len(self._uses[fresh]) == 1)
        require(not write.bool_attr("resize_if_index_out_of_bounds"))
        require((list_length(fresh) or 0) in self._counts)
        self._at_rows[write] = index
        self._made.add(fresh.node)

    def _set_role(self, index: int, changes: set[str]) -> None:
        once = {"TensorListPushBack": Role.PUSHED, "TensorListPopBack": Role.POPPED}
        op = next((op for op in once if op in changes), None)
        if op is None:
            return
        self._roles[index] = once[op]
        tensor, steps = origin(self._body.outputs[index]), 0
        while tensor is not self._body.inputs[index]:
            steps += tensor.node.op == op
            tensor = origin(tensor.node.inputs[0])
        require(changes == {op} and steps == 1 and index not in self._at_rows.values())

    def _find_reads(self) -> None:
        """Find the lists that are handed through and read at the row of the round alone."""
        for index, role in enumerate(self._roles):
            tensor = self._body.inputs[index]
            if role is Role.SAME and tensor.dtype == tf.variant:
                users = [node for node, _ in self._uses[tensor] if node is not None]
                reads = [node for node in users if node.op == "TensorListGetItem"]
                others = [node for node in users if node not in reads]
                if all(map(_asks_a_size, others)) and all(map(self._is_at_row, reads)):
                    self._roles[index] = Role.READ
                    self._at_rows |= dict.fromkeys(reads, index)

    def _only_counts(self, index: int) -> bool:
        """Return whether a counter is read by its increment alone."""
        after = origin(self._body.outputs[index])
        uses = self._uses[self._body.inputs[index]]
        return [node for node, _ in uses] == [after.node] and self._uses[after] == [(None, index)]

    def _is_at_row(self, node: Node) -> bool:
        """Return whether a list is read or written at the row of the round."""
        position, arguments = origin(node.inputs[1]), self._body.inputs
        if Role.POPPED not in self._roles:
            return self._role_of(position, arguments) is Role.COUNTER
        if position.node.op != "TensorListPopBack" or position.index != 1:
            return False
        popped = origin(position.node.inputs[0])
        if popped not in arguments:
            return False
        # Element k of the list is k: a loop over rows has pushed its counter to it.
        pushed = origin(self._node.inputs[arguments.index(popped)])
        loop = pushed.node.row_loop
        return loop is not None and pushed.index in loop.indices


def _asks_a_size(node: Node) -> bool:
    """Return whether a node asks a list for sizes that are known without it."""
    return node.op in ("TensorListLength", "TensorListElementShape") and node.outputs[0].is_sizes


# The shape of a tensor and the numbers in it.
Facts: TypeAlias = "tuple[Shape | None, Shape | None]"
_LARGEST_FACTOR = 2**20


@dataclass(slots=True)
class Inference(SymbolTable):
    def run(self, graph: Graph) -> None:
        inputs = {tensor.node for tensor in graph.inputs}
        outside, self.scope = self.scope, id(graph)
        for node in graph:
            if node not in inputs or node.op != "Placeholder":
                self.infer(node)
        self.scope = outside

    def input_shape(self, tensor: Tensor, batch_axis: int | None, batch: Size) -> None:
        """Set the shape of an argument of the step: its batch axis has the size of the batch."""
        shape = self._complete(tensor, None)
        if shape is not None and batch_axis is not None:
            shape = (*shape[:batch_axis], batch, *shape[batch_axis + 1 :])
        tensor.shape = shape

    def _complete(self, tensor: Tensor, shape: Shape | None) -> Shape | None:
        """Return TensorFlow's static shape, where it is unknown the inferred one, else symbols."""
        static = self.shapes.get(tensor, tensor.node.static_shapes[tensor.index])
        if static is None:
            return shape
        known: Sequence[Size | None] = shape or ()
        if len(known) != len(static):
            known = (None,) * len(static)
        sizes: list[Size] = []
        for axis, (size, inferred) in enumerate(zip(static, known, strict=True)):
            if isinstance(size, int) and inferred and self._counts_samples(size, inferred):
                sizes.append(inferred)
            elif size is not None:
                sizes.append(size)
            else:
                sizes.append(self.new_symbol(tensor, axis) if inferred is None else inferred)
        return tuple(sizes)

    def _counts_samples(self, size: int, inferred: Size) -> bool:
        """Return whether a number is that of samples, as its size says that was inferred.

        Samples beside other rows stay a number: the gradients behind them know no other size.
        """
        return (
            self.num_samples is not None
            and symbols_of(inferred) == {"B"}
            and per_sample(inferred) is not None
            and evaluate(inferred, {"B": self.num_samples}) == size
        )

    def infer(self, node: Node) -> None:
        if node.bodies:
            self._infer_bodies(node)
            return
        rules = operation(node.op)
        shapes = None if rules.shape is None else rules.shape(self, node)
        for tensor in node.outputs:
            shape = shapes[tensor.index] if shapes else None
            tensor.shape = shape if tensor.dtype == tf.variant else self._complete(tensor, shape)
        if not any(t.dtype.is_integer or t.dtype == tf.variant for t in node.outputs):
            return
        values = None if rules.value is None else rules.value(self, node)
        for tensor in node.outputs:
            value = values[tensor.index] if values else None
            value = self.values.get(tensor, value)
            if value is not None and not all(_fits(size, tensor.dtype) for size in value):
                value = None
            tensor.value = value if value is not None else self._opaque(tensor)
            is_given = node.op in ("Const", "Placeholder") or tensor.dtype == tf.variant
            # Numbers that a program computes from data are no sizes: they may be large, as seeds.
            numbers = None if is_given else tensor.value
            tensor.is_sizes = numbers is not None and all(map(self.is_made_of_sizes, numbers))

    def _infer_bodies(self, node: Node) -> None:
        """Find the shapes in a loop or condition, until what comes out of a loop may go in."""
        arguments = node.inputs[num_leading(node) :]
        known = symbols_of(BATCH, *(size for t in arguments for size in t.shape or ()))
        results: list[Facts] = [(t.shape, t.value) for t in arguments]
        if node.op in LOOPS:
            results = self._infer_rounds(node, results, known)
        else:
            self._infer_with(node, results)
            results = _joined(node)
        for tensor, fact in zip(node.outputs, results, strict=True):
            shape, value = _outside(fact, known)
            if tensor.dtype != tf.variant:
                shape = self._complete(tensor, shape)
            tensor.shape = self._with_symbols(tensor, shape)
            tensor.value = self._opaque(tensor) if value is None else value
        loop = node.row_loop = find_row_loop(node)
        # Behind a loop over rows its counters are known, and how long its lists are.
        if loop is None:
            return
        is_certain = self.is_made_of_sizes(loop.count) and is_at_least(loop.count, 0)
        for tensor, role in zip(node.outputs, loop.roles, strict=True):
            if role is Role.COUNTER and is_certain:
                tensor.value, tensor.is_sizes = (loop.count,), True
            elif role in (Role.WRITTEN, Role.PUSHED) and tensor.shape:
                tensor.shape = (loop.count, *tensor.shape[1:])
            elif role is Role.POPPED:
                tensor.shape = any_length(tensor.shape)

    def _infer_rounds(self, node: Node, facts: Sequence[Facts], known: set[str]) -> list[Facts]:
        body = node.bodies["body"]
        stays = [a is b for a, b in zip(body.inputs, body.outputs, strict=True)]
        # Numbers may be others in the next round; those in a list of equal ones are not.
        facts = [
            (shape, value if same or tensor.dtype == tf.variant else None)
            for tensor, (shape, value), same in zip(body.inputs, facts, stays, strict=True)
        ]
        # Each round knows less than the one before, so it ends.
        while True:
            self._infer_with(node, facts)
            # A size that a round has found itself may be another one in the next round.
            results = [
                fact if same else _widened(fact, tensor, known)
                for fact, tensor, same in zip(facts, body.outputs, stays, strict=True)
            ]
            if results == facts:
                return results
            pairs = list(zip(facts, results, strict=True))
            # What depends on lists that were empty so far is seen in the next round.
            if any(a[0] is None and b[0] is not None for a, b in pairs):
                results = [b if a[0] is None else a for a, b in pairs]
            facts = results

    def _infer_with(self, node: Node, facts: Sequence[Facts]) -> None:
        for body in node.bodies.values():
            for tensor, (shape, value) in zip(body.inputs, facts, strict=True):
                tensor.value = value
                if shape is None and tensor.dtype != tf.variant:
                    tensor.shape = self._complete(tensor, None)
                else:
                    tensor.shape = self._with_symbols(tensor, shape)
            self.run(body)

    def _with_symbols(self, tensor: Tensor, shape: Shape | None) -> Shape | None:
        if shape is None:
            return None
        return tuple(self.new_symbol(tensor, k) if s is None else s for k, s in enumerate(shape))

    def _opaque(self, tensor: Tensor) -> Shape | None:
        """Give numbers that nobody knows a symbol each, so that sizes made of them have one."""
        if tensor.shape == () and tensor.dtype.is_integer and tensor.node.op != "Placeholder":
            return (self.new_symbol(tensor, None),)
        return None


def _joined(node: Node) -> list[Facts]:
    """Return what is the same in all branches of a condition."""
    bodies = list(node.bodies.values())
    chosen = truth_of(node.inputs[0]) if "then_branch" in node.bodies else None
    if chosen is not None:
        bodies = [node.bodies["then_branch" if chosen else "else_branch"]]
    joined: list[Facts] = []
    for tensors in zip(*(body.outputs for body in bodies), strict=True):
        shapes = {t.shape for t in tensors}
        if len(shapes) > 1 and tensors[0].dtype == tf.variant:
            shapes = {any_length(shape) for shape in shapes}
        values = {t.value for t in tensors}
        shape = shapes.pop() if len(shapes) == 1 else None
        joined.append((shape, values.pop() if len(values) == 1 else None))
    return joined


def _widened(before: Facts, returned: Tensor, known: set[str]) -> Facts:
    """Return what holds before and after one round of a loop; None for sizes that change."""
    is_list = returned.dtype == tf.variant
    shape, value = before
    new_shape, new_value = _outside((returned.shape, returned.value if is_list else None), known)
    if is_list and shape is not None and shape != new_shape:
        alike = any_length(shape)
        if not alike or alike != any_length(new_shape):
            return UNLIKE_ELEMENTS, None
        return alike, value if value == new_value else None
    if shape is None:
        return new_shape, new_value
    if new_shape is None or len(new_shape) != len(shape):
        return None, None
    pairs = zip(shape, new_shape, strict=True)
    sizes: Any = tuple(size if size == new else None for size, new in pairs)
    return sizes, value if value == new_value else None


def _outside(facts: Facts, known: set[str]) -> Facts:
    """Return facts without what is said in symbols of a body, which mean nothing outside."""
    shape, value = facts
    if shape:
        kept: Any = [s if s is None or symbols_of(s) <= known else None for s in shape]
        shape = tuple(kept)
    if value is not None and not all(symbols_of(size) <= known for size in value):
        value = None
    return shape, value


def _fits(size: Size, dtype: tf.DType) -> bool:
    """Return whether a kernel computes a number without an overflow.

    Sizes are far from it; what a program multiplies by large numbers is a hash or a seed.
    """
    if not dtype.is_integer:
        return True
    if isinstance(size, int):
        return bool(dtype.min <= size <= dtype.max)
    largest = min(_LARGEST_FACTOR, dtype.max)
    return all(abs(factor) <= largest for factor in size.terms.values())
