"""What the operations of a run are: of which micro-batch, stage and pass.

Each is entered when it is made, by what is around it and by what it is made of:

    kind        made
    constant    of constants alone
    weights     of weights, and constants
    forward     of samples
    backward    by a tape
    after       of gradients, but not by a tape: clipping, norms, metrics of them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import tensorflow as tf

from evener.engine.ownership import device_name
from evener.plan import Stage

Kind = Literal["constant", "weights", "forward", "backward", "after"]

_KINDS: dict[str, Kind] = {
    "Const": "constant",
    "Placeholder": "weights",  # What the function has captured: the handle of a variable.
    "ReadVariableOp": "weights",
    "VarHandleOp": "weights",
}


class Made(NamedTuple):
    """What an operation is.

    Attributes:
        segment: How often all replicas had met before, to reduce or to update.
        piece: Number of its piece of the batch.
        kind: What it is made of.
        stage: Number of its stage; None for what belongs to no stage.
        again: Number of the call around it whose activations are computed again, or None.
    """

    segment: int
    piece: int
    kind: Kind
    stage: int | None
    again: int | None


class Entered:
    """The operations of one run, in the order in which they were made."""

    def __init__(self) -> None:
        self._made: dict[tf.Operation, Made] = {}
        self._segment = 0
        self._last_piece = 0

    def items(self) -> Iterator[tuple[tf.Operation, Made]]:
        """Yield every operation and what it is."""
        yield from self._made.items()

    def get(self, op: tf.Operation) -> Made | None:
        """Return what an operation is; None for one made outside of the replicas."""
        made = self._made.get(op)
        if made is None and op.type in _KINDS:
            # Variables are read where they are: TensorFlow asks nobody for a device.
            return Made(0, 0, _KINDS[op.type], None, None)
        return made

    def stage_of(self, tensors: Sequence[tf.Tensor]) -> int | None:
        """Return the latest stage among those of the forward pass that made tensors."""
        found = [self._made.get(tensor.op) for tensor in tensors]
        stages = [m.stage for m in found if m and m.kind == "forward" and m.stage is not None]
        return max(stages, default=None)

    def turns(self) -> list[int]:
        """Return for every segment the number of backward passes before it.

        Segments up to the next backward pass belong together: the replicas have met between.
        """
        ends = {made.segment for made in self._made.values() if made.kind == "backward"}
        turns, turn = [], 0
        for segment in range(self._segment + 1):
            turns.append(turn)
            turn += segment in ends
        return turns

    def enter(
        self,
        op: tf.Operation,
        *,
        piece: int,
        stages: Sequence[Stage],
        stage: int | None,
        in_gradient: bool,
        again: int | None = None,
    ) -> int | None:
        """Enter an operation that was just made; return the number of its stage, or None.

        Args:
            op: The operation.
            piece: The piece of the batch for which it was made.
            stages: The stages of the piece's replica.
            stage: That of the layer that has made it, or None outside of layers.
            in_gradient: Whether a tape has made it.
            again: The call around it whose activations are computed again.
        """
        if piece < self._last_piece:
            self._segment += 1  # All have met; the first replica goes on.
        self._last_piece = piece
        before = [self.get(tensor.op) for tensor in op.inputs]
        kind = _kind_of(op, before, in_gradient=in_gradient)
        if kind == "backward":
            stage = _stage_backward(op, before, stages)
        elif stage is None:
            stage = max((m.stage for m in before if m and m.stage is not None), default=None)
        self._made[op] = Made(self._segment, piece, kind, stage, again)
        return stage

    def enter_copy(self, copy: tf.Operation, op: tf.Operation, user: tf.Operation) -> None:
        """Enter a copy of an operation that computes it again, for a user in the backward pass."""
        self._made[copy] = self._made[user]._replace(stage=self._made[op].stage)


def has_state(op: tf.Operation) -> bool:
    """Return whether an operation may give something else each time it runs, or change something.

    Reading a variable counts, too.
    """
    return op.op_def is None or op.op_def.is_stateful


def takes_turns(op: tf.Operation) -> bool:
    """Return whether TensorFlow keeps an operation in its order among others with state."""
    return has_state(op) and op.type not in _KINDS


def _kind_of(op: tf.Operation, before: Sequence[Made | None], *, in_gradient: bool) -> Kind:
    if in_gradient:
        return "backward"
    kinds = {None if made is None else made.kind for made in before}
    if "backward" in kinds or "after" in kinds:
        return "after"
    if op.type in _KINDS:
        return _KINDS[op.type]
    if has_state(op) or not kinds or not kinds <= {"constant", "weights"}:
        return "forward"
    return "weights" if "weights" in kinds else "constant"


def _stage_backward(
    op: tf.Operation, before: Sequence[Made | None], stages: Sequence[Stage]
) -> int | None:
    """Return the stage of an operation of the backward pass.

    It is that of what was kept for it from the forward pass, or that of the gradients it is made
    of; where those come from another device, the last stage here before theirs.
    """
    asked = device_name(op.device) if op.device else None
    here = [k for k, stage in enumerate(stages) if asked in (None, stage.device)]
    found = []
    for made in before:
        if made is None or made.stage is None:
            continue
        if made.stage in here:
            found.append(made.stage)
        elif made.kind == "backward":
            found.extend([k for k in here if k < made.stage][-1:])
    return min(found, default=here[0] if len(here) == 1 else None)
