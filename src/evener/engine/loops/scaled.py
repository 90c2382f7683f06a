"""Whether a number in a replica is a part of the batch's, or a mean over its own samples.

A loss that is scaled for distribution is a part: parts add up to the batch's loss. A plain
mean over a replica's samples is not, and counts by the replica's samples. Which of them a
scalar is shows in how it was computed:

      loss of Keras, compute_average_loss     a part: evener has scaled it
      sum of samples, times a constant        a part
      mean, divided by the replicas           a part: the person has scaled it
      mean                                    a mean of its own
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
_SUMS = frozenset({"AddV2", "Add", "AddN", "Sub", "Pack", "ConcatV2"})
_TIMES = frozenset({"Mul", "MulNoNan"})
_OVER = frozenset({"RealDiv", "DivNoNan", "Div"})
_CONSTANT = frozenset({"Const", "ZerosLike", "Fill"})
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


_SCALED = _Notes()
_HERE = threading.local()


class _Made(NamedTuple):
    """How a tensor was made: the type of the operation, and what went in."""

    by: str
    inputs: Sequence[tf.Tensor]


def note_scaled(tensor: tf.Tensor) -> tf.Tensor:
    """Remember that this number is a part of the batch's; return it."""
    _SCALED.add(tensor, True)
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
                small = [t for t in inputs if by == "Mean" or t.shape.rank == 0]
                made.add(output, _Made(by, small if output.shape.rank else list(inputs)))

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


def kind_of(tensor: tf.Tensor, num_replicas: int) -> Kind:
    """Return what a scalar in a replica is, or ``"unknown"``."""
    kinds = set(_kinds_of_ends(tensor, num_replicas))
    for kind in ("part", "unknown", "mean"):
        if kind in kinds:
            return kind
    return "unknown"


def _kinds_of_ends(tensor: tf.Tensor, num_replicas: int) -> Iterator[Kind]:
    """Yield the kind of everything that is added up in a scalar."""
    waiting, steps = [_Path(tensor, 1.0, False)], 0
    while waiting:
        path = waiting.pop()
        made, steps = _how(path.tensor), steps + 1
        if _SCALED.get(path.tensor):
            yield "part"
        elif steps > _MOST_STEPS:
            yield "unknown"
        elif made.by in _THROUGH or made.by in _SUMS:
            waiting.extend(path._replace(tensor=t) for t in made.inputs if t.dtype.is_floating)
        elif made.by in _TIMES or made.by in _OVER:
            waiting.extend(_through_factor(path, made))
        elif made.by == "Mean":
            by_person = math.isclose(path.factor * num_replicas, 1.0, rel_tol=1e-4)
            known = not path.is_varied and not _is_scaled_inside(made.inputs[0])
            yield "part" if by_person else "mean" if known else "unknown"
        elif made.by == "Sum" and not path.is_varied:
            yield "part"
        elif made.by not in _CONSTANT:
            yield "unknown"


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


def _is_scaled_inside(tensor: tf.Tensor) -> bool:
    """Whether every sample was multiplied by one number before the mean."""
    made = _how(tensor)
    return made.by in ("Mul", "RealDiv") and any(t.shape.rank == 0 for t in made.inputs)
