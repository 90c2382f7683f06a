"""Loops over rows, as `tf.map_fn` makes them: a round has one row of lists, and no other.

::

    i = 0, 1 .. n - 1      x = read(list, i)   ...   written = write(written, i, f(x))
                           push(i), push(f(x))       kept for the gradient

    the gradient           i = pop(), y = pop()      the rows from the last to the first
                           write(d, i, g(read(d, i), y)), sum += h(..)

A part can run such a loop over its own rows. What is certain to be so is found here: all rounds
have a row of their own, and hand nothing on but lists of rows, and sums.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import tensorflow as tf

from evener.engine.trace.functional import LOOPS
from evener.graph.dims import Dim, Size
from evener.graph.nodes import Graph, Node, Role, RowLoop, Tensor
from evener.ops.lists import list_length, origin
from evener.ops.registry import COPY, has_trait

_SUMS = frozenset({"Add", "AddN", "AddV2"})


def find_row_loop(node: Node) -> RowLoop | None:
    """Return how a loop goes over rows; None if it is not certain that it does.

    Args:
        node: A loop, whose bodies have shapes.
    """
    if node.op not in LOOPS or not node.bodies:
        return None
    finder = _Finder(node)
    return finder.found() if finder.is_certain() else None


class _Finder:
    """Finds the roles of the arguments, and holds the body to them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._body: Graph = node.bodies["body"]
        self._uses: dict[Tensor, list[tuple[Node | None, int]]] = defaultdict(list)
        for user in self._body:
            if not has_trait(user, COPY):
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

    def found(self) -> RowLoop:
        """Return what was found."""
        return RowLoop(
            count=next(iter(self._counts)),
            roles=tuple(self._roles),
            tests=frozenset(self._tests),
            at_rows=self._at_rows,
            made=frozenset(self._made),
            indices=frozenset(self._indices),
        )

    def is_certain(self) -> bool:
        """Find all roles; return whether they are certain."""
        for index in range(len(self._body.inputs)):
            role = self._simple_role(index)
            if role is None:
                return False
            self._roles.append(role)
        if not self._find_tests(self._node.bodies["cond"].outputs[0]) or len(self._counts) != 1:
            return False
        if not isinstance(next(iter(self._counts)), Dim):
            return False
        lists = [k for k, role in enumerate(self._roles) if role is Role.WRITTEN]
        if not all(self._follow(index) for index in lists):
            return False
        self._find_reads()
        return self._is_in_one_order() and all(map(self._is_of_all_rows, range(len(self._roles))))

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

    def _find_tests(self, tensor: Tensor) -> bool:
        """Return whether a condition only compares counters with known numbers."""
        tensor = origin(tensor)
        node, arguments = tensor.node, self._node.bodies["cond"].inputs
        if node.op == "LogicalAnd":
            return all(map(self._find_tests, node.inputs))
        if node.op != "Less":
            return False
        counter, limit = map(origin, node.inputs)
        if counter not in arguments or self._roles[arguments.index(counter)] is not Role.COUNTER:
            return False
        if limit in arguments:
            if self._roles[arguments.index(limit)] is not Role.SAME:
                return False
            limit = self._node.inputs[arguments.index(limit)]
        if limit.value is None:
            return False
        self._tests.add(node)
        self._counts |= set(limit.value)
        return True

    def _follow(self, index: int) -> bool:
        """Follow a list through a round; return whether only the row of the round changes."""
        tensor, changes = self._body.inputs[index], set()
        while True:
            changing: list[tuple[Node | None, int]] = []
            for node, position in self._uses[tensor]:
                if node is not None and node.op == "TensorListGetItem":
                    self._at_rows[node] = index
                elif node is None or not _asks_a_size(node):
                    changing.append((node, position))
            if len(changing) != 1:
                return False
            ((node, position),) = changing
            if node is None:
                return position == index and self._set_role(index, changes)
            if not self._is_change(node, position, index):
                return False
            changes.add(node.op)
            tensor = node.outputs[0]

    def _is_change(self, node: Node, position: int, index: int) -> bool:
        if node.op == "TensorListSetItem":
            self._at_rows[node] = index
            return position == 0 and not node.bool_attr("resize_if_index_out_of_bounds")
        if node.op == "AddN":
            others = [origin(t) for k, t in enumerate(node.inputs) if k != position]
            return all(self._is_made_here(other, index) for other in others)
        if node.op == "TensorListPushBack" and position == 0:
            item = origin(node.inputs[1])
            arguments = self._body.inputs
            if item in arguments and self._roles[arguments.index(item)] is Role.COUNTER:
                self._indices.add(index)
            return True
        return node.op == "TensorListPopBack"

    def _is_made_here(self, tensor: Tensor, index: int) -> bool:
        """Return whether a list has been made in this round and has the row of the round alone."""
        write = tensor.node
        if write.op != "TensorListSetItem" or len(self._uses[tensor]) != 1:
            return False
        fresh = origin(write.inputs[0])
        if fresh.node.op != "TensorListReserve" or len(self._uses[fresh]) != 1:
            return False
        if write.bool_attr("resize_if_index_out_of_bounds"):
            return False
        self._at_rows[write] = index
        self._made.add(fresh.node)
        return (list_length(fresh) or 0) in self._counts

    def _set_role(self, index: int, changes: set[str]) -> bool:
        """Set the role of a list by what changes it in a round."""
        once = {"TensorListPushBack": Role.PUSHED, "TensorListPopBack": Role.POPPED}
        for op, role in once.items():
            if op in changes:
                self._roles[index] = role
                reads = any(k == index for k in self._at_rows.values())
                steps = sum(made.op == op for made in self._chain(index))
                return changes == {op} and steps == 1 and not reads
        return True

    def _chain(self, index: int) -> Iterator[Node]:
        """Yield what made a list of the one that the round was given, backwards."""
        tensor = origin(self._body.outputs[index])
        while tensor is not self._body.inputs[index]:
            yield tensor.node
            tensor = origin(tensor.node.inputs[0])

    def _find_reads(self) -> None:
        """Find the lists that are handed through and read at the row of the round alone."""
        for index, role in enumerate(self._roles):
            tensor = self._body.inputs[index]
            if role is not Role.SAME or tensor.dtype != tf.variant:
                continue
            users = [node for node, _ in self._uses[tensor] if node is not None]
            reads = [node for node in users if node.op == "TensorListGetItem"]
            if all(node in reads or _asks_a_size(node) for node in users) and all(
                self._is_at_row(node) for node in reads
            ):
                self._roles[index] = Role.READ
                self._at_rows |= dict.fromkeys(reads, index)

    def _is_in_one_order(self) -> bool:
        """Return whether the rounds go one way: from the first row, or from the last, popped."""
        if Role.POPPED in self._roles:
            counters = [k for k, role in enumerate(self._roles) if role is Role.COUNTER]
            # Rows from the last to the first have other numbers than the rounds of a part.
            if Role.PUSHED in self._roles or not all(map(self._only_counts, counters)):
                return False
        return all(map(self._is_at_row, self._at_rows))

    def _only_counts(self, index: int) -> bool:
        """Return whether a counter is read by its increment alone."""
        after = origin(self._body.outputs[index])
        uses = self._uses[self._body.inputs[index]]
        return [node for node, _ in uses] == [after.node] and self._uses[after] == [(None, index)]

    def _is_at_row(self, node: Node) -> bool:
        """Return whether a list is read or written at the row of the round."""
        position, arguments = origin(node.inputs[1]), self._body.inputs
        if Role.POPPED not in self._roles:
            return position in arguments and self._roles[arguments.index(position)] is Role.COUNTER
        if position.node.op != "TensorListPopBack" or position.index != 1:
            return False
        popped = origin(position.node.inputs[0])
        return popped in arguments and _holds_indices(self._node.inputs[arguments.index(popped)])

    def _is_of_all_rows(self, index: int) -> bool:
        """Return whether a list that changes has as many elements as there are rounds."""
        role, given = self._roles[index], self._node.inputs[index]
        if role is Role.PUSHED:
            return origin(given).node.op == "EmptyTensorList"
        if role in (Role.WRITTEN, Role.POPPED):
            return list_length(given) in self._counts
        return True


def _asks_a_size(node: Node) -> bool:
    """Return whether a node asks a list for sizes that are known without it."""
    return node.op in ("TensorListLength", "TensorListElementShape") and node.outputs[0].is_sizes


def _holds_indices(tensor: Tensor) -> bool:
    """Return whether element k of a list is k: a loop over rows has pushed its counter to it."""
    tensor = origin(tensor)
    loop = tensor.node.row_loop
    return loop is not None and tensor.index in loop.indices
