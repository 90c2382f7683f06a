"""The order of micro-batches in a run: that of the plan's schedule, on every device.

A run calls the person's function once per micro-batch, all in one graph, and nothing but data
says what comes first. When the run ends, its operations are known, and control edges are added:

      gpu:0   F0 ──► F1 ──► B0 ──► F2 ──► B1 ...    each edge: from the ends of one block
      gpu:1      F0B0 ──► F1B1 ──► ...              to where the other block begins

A *block* is what one stage computes of one micro-batch, forward or backward. Edges lead from
earlier micro-batches to later ones only. As a rule all of an earlier micro-batch is made before
a later one, so that no edge can close a circle. Where all micro-batches meet between the forward
and the backward pass (to add up what a loss is divided by, say), it is looked at edge by edge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from evener import _tf_private
from evener.engine.staged.loops.entered import Entered, Kind, takes_turns
from evener.engine.staged.pieces import Piece
from evener.plan import Plan, Schedule, Task, TaskKind, schedule_for


class Block(NamedTuple):
    """What one stage computes of one piece, forward or backward.

    Attributes:
        turn: The number of backward passes before: a function may take several steps.
        piece: Number of the piece.
        kind: What its operations are.
        stage: Number of the stage.
    """

    turn: int
    piece: int
    kind: Kind | TaskKind
    stage: int


class Order:
    """Lets the operations of a run follow the schedules of a plan.

    Args:
        plan: Says the schedules.
        pieces: The pieces of every batch.
        entered: The operations.
        sums: For gradients, the additions that they went into.
        graph: Holds the operations.
    """

    def __init__(
        self,
        plan: Plan,
        pieces: Sequence[Piece],
        entered: Entered,
        sums: Mapping[tf.Operation, Sequence[tf.Operation]],
        graph: tf.Graph,
    ) -> None:
        self._plan = plan
        self._pieces = pieces
        self._graph = graph
        self._entered = entered
        self._ends: dict[Block, tf.Operation] = {}
        self._members: dict[Block, list[tf.Operation]] = defaultdict(list)
        self._sums: dict[Block, list[tf.Operation]] = defaultdict(list)
        turns = entered.turns()
        self._split_turns = {turn for turn in turns if turns.count(turn) > 1}
        for op, one in entered.items():
            if one.kind in ("forward", "backward") and one.stage is not None:
                block = Block(turns[one.segment], one.piece, one.kind, one.stage)
                self._members[block].append(op)
                self._sums[block].extend(sums.get(op, ()))
        self._num_turns = max(turns) + 1
        self._needs = Needs(graph) if self._split_turns else None

    def enforce(self) -> bool:
        """Add the control edges; return whether all of them could be added."""
        complete = True
        for number, replica in enumerate(self._plan.replicas):
            places = [k for k, piece in enumerate(self._pieces) if piece.replica == number]
            pairs = list(_followers(schedule_for(replica))) if len(places) > 1 else []
            for turn in range(self._num_turns):
                for earlier, later in pairs:
                    first, then = (
                        Block(turn, places[t.micro_batch], t.kind, t.stage)
                        for t in (earlier, later)
                    )
                    if first in self._members and then in self._members:
                        complete = self._follow(first, then) and complete
        return complete

    def _follow(self, first: Block, then: Block) -> bool:
        if first not in self._ends:
            self._ends[first] = self._end_of(first)
        end, members = self._ends[first], set(self._members[then])
        begin = [op for op in members if not any(t.op in members for t in op.inputs)]
        if first.turn not in self._split_turns or self._needs is None:
            for op in begin:
                _tf_private.run_after(op, [end])
            return True
        before = self._needs.of(end)
        free = [op for op in begin if op not in before]
        for op in free:
            _tf_private.run_after(op, [end])
            self._needs.add(op, end)
        # Masks and counts need not wait; what computes with weights makes what fills memory.
        waiting = _made_of(free, members)
        return not any(self._uses_weights(op) for op in members - waiting)

    def _uses_weights(self, op: tf.Operation) -> bool:
        made = (self._entered.get(tensor.op) for tensor in op.inputs)
        return any(one is not None and one.kind == "weights" for one in made)

    def _end_of(self, block: Block) -> tf.Operation:
        """Return an operation that has run when all of a block have."""
        operations = self._members[block]
        used = {tensor.op for op in operations for tensor in op.inputs}
        last = [op for op in operations if op not in used] + self._sums[block]
        with self._graph.as_default(), tf.device(operations[0].device):
            # Nothing that was around the call of `run` belongs here.
            with tf.control_dependencies(None), tf.control_dependencies(last):
                end = tf.no_op()
        if self._needs is not None:
            self._needs.add(end, *last)
        return end


class Needs:
    """What the operations of a graph need to have run before them.

    TensorFlow lets operations with state run in the order in which they were made, as far as
    they share it; here they are taken to share it all.

    Args:
        graph: As far as it is made.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self._needs: dict[tf.Operation, list[tf.Operation]] = {}
        last = None
        for op in graph.get_operations():
            self._needs[op] = [*(tensor.op for tensor in op.inputs), *op.control_inputs]
            if takes_turns(op):
                self._needs[op].extend([] if last is None else [last])
                last = op

    def add(self, op: tf.Operation, *others: tf.Operation) -> None:
        """Note that an operation needs others."""
        self._needs.setdefault(op, []).extend(others)

    def of(self, op: tf.Operation) -> set[tf.Operation]:
        """Return all that an operation needs, with itself."""
        waiting, seen = [op], {op}
        while waiting:
            more = [one for one in self._needs[waiting.pop()] if one not in seen]
            seen.update(more)
            waiting.extend(more)
        return seen


def _made_of(begin: Sequence[tf.Operation], members: set[tf.Operation]) -> set[tf.Operation]:
    """Return those members of a block that are made of some of them."""
    found, waiting = set(begin), list(begin)
    while waiting:
        users = {user for tensor in waiting.pop().outputs for user in tensor.consumers()}
        more = (users & members) - found
        found |= more
        waiting.extend(more)
    return found


def _followers(schedule: Schedule) -> Iterator[tuple[Task, Task]]:
    """Yield pairs of tasks of one device: the second waits for the first.

    Of each task, the latest forward and the latest backward one before it, as far as they are
    of earlier micro-batches.
    """
    for order in schedule.orders:
        done: list[Task] = []
        for task in order:
            for kind in ("forward", "backward"):
                earlier = (
                    t for t in reversed(done) if t.kind == kind and t.micro_batch < task.micro_batch
                )
                found = next(earlier, None)
                if found is not None and task.kind != "weights":
                    yield found, task
            done.append(task)
