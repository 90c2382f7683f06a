"""The order of micro-batches in a run: that of the plan's schedule, on every device.

A run calls the person's function once per micro-batch, all in one graph, and nothing but data
says what comes first. When the run ends, its operations are known, and control edges are added:

      gpu:0   F0 ──► F1 ──► B0 ──► F2 ──► B1 ...    each edge: from the ends of one block
      gpu:1      F0B0 ──► F1B1 ──► ...              to where the other block begins

A *block* is what one stage computes of one micro-batch, forward or backward. Edges lead from
earlier micro-batches to later ones only. Operations of earlier ones are made earlier, so that
edges can never close a circle, whatever the function does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import tensorflow as tf

from evener import _tf_private
from evener.engine.ownership import device_name
from evener.engine.pieces import Piece
from evener.plan import Plan, Schedule, Task, schedule_for

_CONSTANT = frozenset({"Const", "Placeholder", "ReadVariableOp", "VarHandleOp"})

Kind = Literal["constant", "forward", "backward", "after"]
"""What an operation is: made of weights alone; of the pass it is named for; made of gradients."""


class Block(NamedTuple):
    """What one stage computes of one piece, forward or backward.

    Attributes:
        segment: How often the replicas had met before, to reduce or to update.
        piece: Number of the piece.
        kind: What its operations are.
        stage: Number of the stage; None for what belongs to no stage.
    """

    segment: int
    piece: int
    kind: Kind
    stage: int | None


class Order:
    """The operations of one run, and in which order they shall run.

    Args:
        plan: Says the schedules.
        pieces: The pieces of every batch.
        graph: In which the function is called for every piece.
    """

    def __init__(self, plan: Plan, pieces: Sequence[Piece], graph: tf.Graph) -> None:
        self._plan = plan
        self._pieces = pieces
        self._graph = graph
        self._block_of: dict[tf.Operation, Block] = {}
        self._ends: dict[Block, tf.Operation] = {}
        self._sums: dict[Block, list[tf.Operation]] = defaultdict(list)
        self._segment = 0
        self._last_piece = 0

    @property
    def num_segments(self) -> int:
        """In how many parts the replicas ran, with a meeting of all between two."""
        return self._segment + 1

    def stage_of(self, tensors: Sequence[tf.Tensor]) -> int | None:
        """Return the latest stage among those of the forward pass that made tensors."""
        blocks = [self._block_of.get(tensor.op) for tensor in tensors]
        stages = [b.stage for b in blocks if b and b.kind == "forward" and b.stage is not None]
        return max(stages, default=None)

    def enter(
        self, op: tf.Operation, piece: int, stage: int | None, *, in_gradient: bool
    ) -> int | None:
        """Enter an operation that was just made; return its stage, or None.

        Args:
            op: Of the graph.
            piece: The piece for which it was made.
            stage: That of the layer that has made it, or None outside of layers.
            in_gradient: Whether a tape has made it.
        """
        if piece < self._last_piece:
            self._segment += 1
        self._last_piece = piece
        before = [self._block_of.get(tensor.op) for tensor in op.inputs]
        kind = _kind_of(op, before, in_gradient=in_gradient)
        if kind == "backward":
            stage = self._stage_backward(op, before, piece)
        elif stage is None:
            stage = max((b.stage for b in before if b and b.stage is not None), default=None)
        self._block_of[op] = Block(self._segment, piece, kind, stage)
        return stage

    def enter_sum(self, total: tf.Operation, gradient: tf.Operation) -> None:
        """Let what waits for a gradient wait for the sum that it was added to."""
        block = self._block_of.get(gradient)
        if block is not None and block.kind == "backward":
            self._sums[block].append(total)

    def enforce(self) -> None:
        """Add the control edges."""
        members: dict[Block, list[tf.Operation]] = defaultdict(list)
        for op, block in self._block_of.items():
            if block.kind in ("forward", "backward") and block.stage is not None:
                members[block].append(op)
        for number, replica in enumerate(self._plan.replicas):
            places = [k for k, piece in enumerate(self._pieces) if piece.replica == number]
            if len(places) == 1:
                continue
            for segment in range(self.num_segments):
                for earlier, later in _followers(schedule_for(replica)):
                    first, then = (
                        Block(segment, places[t.micro_batch], t.kind, t.stage)
                        for t in (earlier, later)
                    )
                    if first in members and then in members:
                        self._follow(first, then, members)

    def _follow(
        self, first: Block, then: Block, members: dict[Block, list[tf.Operation]]
    ) -> None:
        if first not in self._ends:
            self._ends[first] = self._end_of(first, members[first])
        for op in members[then]:
            inside = (self._block_of.get(tensor.op) for tensor in op.inputs)
            if then not in inside:
                _tf_private.run_after(op, [self._ends[first]])

    def _end_of(self, block: Block, operations: Sequence[tf.Operation]) -> tf.Operation:
        """Return an operation that has run when all of a block have."""
        used = {tensor.op for op in operations for tensor in op.inputs}
        last = [op for op in operations if op not in used] + self._sums[block]
        with self._graph.as_default(), tf.device(operations[0].device):
            # Nothing that was around the call of `run` belongs here.
            with tf.control_dependencies(None), tf.control_dependencies(last):
                return tf.no_op()

    def _stage_backward(
        self, op: tf.Operation, before: Sequence[Block | None], piece: int
    ) -> int | None:
        """Return the stage of an operation of the backward pass.

        It is that of what was kept for it from the forward pass, or that of the gradients it
        is made of; where those come from another device, the last stage here before theirs.
        """
        stages = self._plan.replicas[self._pieces[piece].replica].stages
        asked = device_name(op.device) if op.device else None
        here = [k for k, s in enumerate(stages) if asked in (None, s.device)]
        found = []
        for block in before:
            if block is None or block.stage is None:
                continue
            if block.stage in here:
                found.append(block.stage)
            elif block.kind == "backward":
                found.extend([k for k in here if k < block.stage][-1:])
        return min(found, default=here[0] if len(here) == 1 else None)


def _kind_of(op: tf.Operation, before: Sequence[Block | None], *, in_gradient: bool) -> Kind:
    if in_gradient:
        return "backward"
    kinds = {None if block is None else block.kind for block in before}
    if "backward" in kinds or "after" in kinds:
        return "after"
    if op.type in _CONSTANT:
        return "constant"
    is_stateful = op.op_def is not None and op.op_def.is_stateful
    return "constant" if kinds == {"constant"} and not is_stateful else "forward"


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
