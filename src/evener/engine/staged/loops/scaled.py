"""What a number in a replica is made of, and what of it is no part of the batch's number.

A loss that is scaled for distribution is a part: the parts of all replicas add up to the
batch's loss. How a number was computed shows what it adds up:

      what is added up                          its part, with w = b_r / B
      loss of Keras, compute_average_loss       as it is: evener has scaled it
      a sum of samples, times a constant        as it is
      a sum of weights, times a constant        times R w: it is the same in all replicas
      a mean, or a term of ``model.losses``     times w
      the same, divided by the replicas         times R w: even shares were meant

What a mean lacks to be a part is added to the number, or to the seeds of its gradient.
"""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from evener import _tf_private

Kind = Literal["part", "mean", "unknown"]

# What a value goes through unchanged, as far as its scale is concerned.
_THROUGH = frozenset({
    "Identity", "Cast", "Reshape", "Squeeze", "StopGradient", "CheckNumerics", "EnsureShape",
    "PreventGradient", "IdentityN", "SelectV2",
})  # fmt: skip
_SUMS = frozenset({"AddV2", "Add", "AddN", "Sub", "Neg", "Pack", "ConcatV2"})
_TIMES = frozenset({"Mul", "MulNoNan"})
_OVER = frozenset({"RealDiv", "DivNoNan", "Div"})
_CONSTANT = frozenset({"Const", "ZerosLike", "Fill"})
_READS = frozenset({"ReadVariableOp", "ResourceGather"})
_MENDED = frozenset({"mean", "term", "penalty"})
_MOST_STEPS = 1000


class _Notes:
    """Something noted of tensors, which cannot be hashed, as long as they live."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}

    def add(self, tensor: tf.Tensor, note: Any) -> None:
        key = id(tensor)
        reference = weakref.ref(tensor, lambda _: self._known.pop(key, None))
        self._known[key] = (reference, note)

    def get(self, tensor: tf.Tensor) -> Any | None:
        reference, note = self._known.get(id(tensor), (None, None))
        return note if reference is not None and reference() is tensor else None


_NOTES = _Notes()
_HERE = threading.local()


class _Made(NamedTuple):
    """How a tensor was made: the type of the operation, and what went in."""

    by: str
    inputs: Sequence[tf.Tensor]


def note_scaled(tensor: tf.Tensor) -> tf.Tensor:
    """Remember that this number is a part of the batch's; return it."""
    _NOTES.add(tensor, "part")
    return tensor


def note_term(tensor: tf.Tensor) -> tf.Tensor:
    """Remember that this number is a term of ``model.losses``; return it."""
    _NOTES.add(tensor, "term")
    return tensor


def note_mean(tensor: tf.Tensor) -> tf.Tensor:
    """Remember that this number is a mean over the replica's own samples; return it."""
    _NOTES.add(tensor, "mean")
    return tensor


@contextlib.contextmanager
def remembering_how() -> Iterator[None]:
    """Remember how tensors are made in eager mode, where no graph does it.

    Only of numbers, and of what goes into a mean; no large tensor is kept alive by it.
    """
    made = _Notes()

    def remember(by: str, inputs: Any, outputs: Any) -> None:
        for output in outputs:
            if output.dtype.is_floating:
                is_small = output.shape.rank == 0 or by == "Pack"
                kept = [t for t in inputs if is_small or t.shape.rank == 0]
                made.add(output, _Made(by, kept))

    _HERE.made = made
    try:
        with _tf_private.watching_operations(remember):
            yield
    finally:
        _HERE.made = None


def _how(tensor: tf.Tensor) -> _Made:
    if not tf.is_symbolic_tensor(tensor):
        made = getattr(_HERE, "made", None)
        return (made and made.get(tensor)) or _Made("", ())
    return _Made(tensor.op.type, list(tensor.op.inputs))


class End(NamedTuple):
    """Something that is added up in a number.

    Attributes:
        kind: ``"part"``; ``"sum"``, of samples; ``"penalty"``, a sum of weights; ``"mean"``,
            of the replica's samples; ``"term"``, of ``model.losses``; or ``"unknown"``.
        tensor: The scalar.
        factor: By what constant it is multiplied in the number.
    """

    kind: Literal["part", "sum", "penalty", "mean", "term", "unknown"]
    tensor: tf.Tensor
    factor: float = 1.0

    def is_divided(self, num_replicas: int) -> bool:
        """Return whether the person has divided it by the number of replicas."""
        return math.isclose(abs(self.factor) * num_replicas, 1.0, rel_tol=1e-4)

    def is_of_a_loss(self, num_replicas: int) -> bool:
        """Return whether a number that holds it is meant to be added up over the replicas."""
        if self.kind == "mean":
            return self.is_divided(num_replicas)
        return self.kind != "unknown"

    def is_whole(self, num_replicas: int) -> bool:
        """Return whether it counts as if this replica were the only one."""
        return self.kind in ("mean", "term") and not self.is_divided(num_replicas)

    def is_mean_of(self, whole_rows: int | None) -> bool:
        """Return whether it is a mean over a batch that every replica has as a whole."""
        if self.kind != "sum" or not whole_rows:
            return False
        return math.isclose(abs(self.factor) * whole_rows, 1.0, rel_tol=1e-4)

    def lacks(self, weight: tf.Tensor, num_replicas: int) -> tf.Tensor:
        """Return how often it has to be added to the number to make it a part."""
        weight = tf.cast(weight, self.tensor.dtype)
        if self.kind == "sum":
            return self.factor * (weight - 1.0)
        is_shared = self.kind == "penalty" or self.is_divided(num_replicas)
        share = weight * num_replicas if is_shared else weight
        return self.factor * (share - 1.0)


def is_sum(tensor: tf.Tensor) -> bool:
    """Return whether a number is made of sums over samples alone."""
    ends = ends_of(tensor)
    return bool(ends) and all(end.kind in ("part", "sum") for end in ends)


def kind_of(tensor: tf.Tensor, num_replicas: int) -> Kind:
    """Return what a scalar in a replica is, or ``"unknown"``."""
    ends = ends_of(tensor)
    if any(end.is_of_a_loss(num_replicas) for end in ends):
        return "part"
    is_mean = ends and all(end.kind == "mean" for end in ends)
    return "mean" if is_mean else "unknown"


def to_mend(tensor: tf.Tensor, whole_rows: int | None = None) -> list[End]:
    """Return what is added up in a number without being a part of the batch's.

    Args:
        tensor: The number.
        whole_rows: The size of the batch, if every replica has all of it.
    """
    return [end for end in ends_of(tensor) if end.kind in _MENDED or end.is_mean_of(whole_rows)]


def mended(
    tensor: tf.Tensor, weight: tf.Tensor, num_replicas: int, whole_rows: int | None = None
) -> tf.Tensor:
    """Return a number that adds up to the batch's, from one that is made of parts and means."""
    ends = to_mend(tensor, whole_rows)
    lacking = [end.tensor * end.lacks(weight, num_replicas) for end in ends]
    return note_scaled(tf.add_n([tensor, *lacking])) if lacking else tensor


def ends_of(tensor: tf.Tensor) -> list[End]:
    """Return everything that is added up in a scalar."""
    ends: list[End] = []
    waiting, steps = [_Path(tensor, 1.0, False)], 0
    while waiting:
        path = waiting.pop()
        made, steps = _how(path.tensor), steps + 1
        note = _NOTES.get(path.tensor)
        if steps > _MOST_STEPS:
            ends.append(End("unknown", path.tensor))
        elif note is not None:
            kind = "unknown" if note != "part" and path.is_varied else note
            ends.append(End(kind, path.tensor, path.factor))
        elif made.by in _THROUGH or made.by in _SUMS or _adds_numbers(made):
            waiting.extend(_through_sum(path, made))
        elif made.by in _TIMES or made.by in _OVER:
            waiting.extend(_through_factor(path, made))
        elif made.by in ("Mean", "Sum", "L2Loss"):
            is_known = not path.is_varied and not _is_scaled_inside(made)
            kind = "mean" if made.by == "Mean" else "sum"
            if kind == "sum" and _is_of_weights(made):
                kind = "penalty"
            ends.append(End(kind if is_known else "unknown", path.tensor, path.factor))
        elif made.by not in _CONSTANT:
            ends.append(End("unknown", path.tensor))
    return ends


class _Path(NamedTuple):
    """A tensor on the way to a scalar.

    Attributes:
        tensor: The tensor.
        factor: By what constant it is multiplied on the way.
        is_varied: Whether it is multiplied by what is no constant, too.
    """

    tensor: tf.Tensor
    factor: float
    is_varied: bool


def _is_of_weights(made: _Made) -> bool:
    """Whether something was computed of variables alone, and so is the same in all replicas."""
    waiting, seen, reads = list(made.inputs), set(), False
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        before = _how(tensor)
        if before.by in _READS:
            reads = True
            continue
        if len(seen) > _MOST_STEPS or (not before.inputs and before.by not in _CONSTANT):
            return False
        waiting.extend(before.inputs)
    return reads


def _adds_numbers(made: _Made) -> bool:
    """Whether a sum is one of numbers, such as of ``model.losses``, and not of samples."""
    if made.by != "Sum":
        return False
    return made.inputs[0].shape.rank == 0 or _how(made.inputs[0]).by == "Pack"


def _through_sum(path: _Path, made: _Made) -> list[_Path]:
    ways = [path._replace(tensor=t) for t in made.inputs if t.dtype.is_floating]
    if made.by == "Sum":
        return ways[:1]
    if made.by == "Neg" or (made.by == "Sub" and len(ways) == 2):
        ways[-1] = ways[-1]._replace(factor=-path.factor)
    return ways


def _through_factor(path: _Path, made: _Made) -> list[_Path]:
    """Return the ways on through a product or a quotient."""
    one, other = made.inputs
    for value, constant in ((one, other), (other, one)):
        number = _number(constant)
        if number is None:
            continue
        if made.by in _TIMES:
            return [path._replace(tensor=value, factor=path.factor * number)]
        if value is one and number:
            return [path._replace(tensor=value, factor=path.factor / number)]
    rest = (one, other) if made.by in _TIMES else (one,)
    return [path._replace(tensor=value, is_varied=True) for value in rest]


def _number(tensor: tf.Tensor) -> float | None:
    """Return a constant number, or None. Eagerly, what was computed of nothing known is one."""
    if not tf.is_symbolic_tensor(tensor) and _how(tensor).by not in ("", *_CONSTANT, "Cast"):
        return None
    number = tf.get_static_value(tensor)
    return float(number) if number is not None and number.size == 1 else None


def _is_scaled_inside(made: _Made) -> bool:
    """Whether every sample was multiplied by one number before a mean."""
    if made.by != "Mean":
        return False
    before = _how(made.inputs[0])
    return before.by in ("Mul", "RealDiv") and any(t.shape.rank == 0 for t in before.inputs)
