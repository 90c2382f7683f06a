"""Tensors that a program keeps from step to step, with the line that made them and their holder."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter
from typing import Any

import tensorflow as tf

from evener._tf_private.tensors import is_eager_tensor
from evener.base.user_code import is_own
from evener.doctor.facts import CodeLine, Growth
from evener.doctor.watch.recorder import Recorder

# Tensors of the last steps may still be in use.
_IN_USE_STEPS = 2
_LEAST_STEPS = 5
_MOST_TENSORS = 100_000
_DEEPEST = 3


class Kept:
    """Remembers the tensors that a program is given, as long as they live.

    Weak references show what lives: looking at all objects of Python would disturb other threads.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._alive: dict[int, tuple[weakref.ref[Any], int, CodeLine | None]] = {}

    def give(self, structure: Any, where: CodeLine | None) -> None:
        """Take note of tensors that a line of the program has got."""
        if len(self._alive) > _MOST_TENSORS:
            return
        parts = structure if isinstance(structure, list | tuple) else (structure,)
        alive = self._alive
        for part in parts:
            if isinstance(part, list | tuple | dict):
                self.give(tf.nest.flatten(part), where)
            elif is_eager_tensor(part):
                key = id(part)
                reference = weakref.ref(part, lambda _, key=key: alive.pop(key, None))
                alive[key] = (reference, self._recorder.num_steps, where)

    def growth(self, held: set[int]) -> Growth | None:
        """Return what has grown; None after fewer than five steps."""
        last = self._recorder.num_steps
        if last < _LEAST_STEPS:
            return None
        gc.collect()
        steps = last - _IN_USE_STEPS
        kept = [
            (tensor, where, step)
            for key, (reference, step, where) in list(self._alive.items())
            if key not in held and 0 < step <= steps and (tensor := reference()) is not None
            # Handles, as those of datasets, hold nothing.
            if num_bytes(tensor)
        ]
        lines = Counter(where for where, _ in {(where, step) for _, where, step in kept})
        where, num = lines.most_common(1)[0] if lines else (None, 0)
        # Some that live on, as the last loss and the optimizer's state, are no growth.
        is_growth = num >= max(_LEAST_STEPS, steps // 2)
        tensors = [tensor for tensor, _, _ in kept]
        samples = [tensor for tensor, line, _ in kept if line == where]
        return Growth(
            tensors_per_step=len(tensors) / steps if is_growth else 0.0,
            bytes_per_step=sum(map(num_bytes, tensors)) / steps if is_growth else 0.0,
            holder=_holder_of(samples[len(samples) // 2]) if is_growth else "",
            where=where if is_growth else None,
        )


def num_bytes(tensor: Any) -> int:
    """Return the bytes of a tensor whose shape is known."""
    return int(tensor.shape.num_elements() or 0) * int(tensor.dtype.size)


def _holder_of(tensor: Any) -> str:
    """Return the name of the container that keeps a tensor, as the program names it; or empty."""
    names: dict[int, str] = {
        id(value): name for name, value in vars(sys.modules["__main__"]).items()
    }
    frame = sys._getframe()
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            names.update((id(value), name) for name, value in frame.f_locals.items())
        frame = frame.f_back
    waiting: list[tuple[Any, int]] = [(tensor, 0)]
    seen = {id(waiting), id(names)}
    while waiting:
        value, depth = waiting.pop(0)
        for holder in gc.get_referrers(value):
            if id(holder) in seen or not isinstance(holder, list | tuple | dict | set):
                continue
            seen.add(id(holder))
            if id(holder) in names:
                return names[id(holder)]
            if isinstance(holder, dict):
                owner = _owner_of(holder)
                if owner is not None:
                    name = next((key for key, each in holder.items() if each is value), "")
                    return f"{type(owner).__name__}.{name}"
            if depth < _DEEPEST:
                waiting.append((holder, depth + 1))
    return ""


def _owner_of(attributes: dict[Any, Any]) -> Any:
    """Return the object of a class of the program whose attributes these are, or None."""
    for owner in gc.get_referrers(attributes):
        module = sys.modules.get(type(owner).__module__)
        file = str(getattr(module, "__file__", None) or "<none>")
        if is_own(file) and getattr(owner, "__dict__", None) is attributes:
            return owner
    return None
