"""Noticing a plain custom loop, and saying what would distribute it."""

from __future__ import annotations

import functools
import linecache
from types import FrameType
from typing import Any

import keras
import tensorflow as tf

from evener.engine import Strategy
from evener.launch.notes import Notes
from evener.launch.place import Place, callers, is_own, place_of
from evener.launch.rewrite import Rewrite, rewrite_of

# The modules in whose hands an optimizer is part of `fit`.
_TRAINERS = ("keras.src.backend.tensorflow.trainer", "keras.src.trainers")


def notice_loops(strategy: Strategy, notes: Notes) -> None:
    """Tell of the first optimizer that is applied outside of every strategy and of ``fit``.

    Args:
        strategy: What the loop could use.
        notes: Where it is told.
    """
    if len(strategy.replica_devices) == 1:
        return
    original = keras.optimizers.Optimizer.apply
    told = False

    @functools.wraps(original)
    @tf.autograph.experimental.do_not_convert
    def apply(self: keras.optimizers.Optimizer, *args: Any, **kwargs: Any) -> Any:
        nonlocal told
        if not told and not tf.distribute.has_strategy():
            place = _place_of_a_loop()
            if place is not None:
                told = True
                notes.tell(_advice(place, strategy.replica_devices), place)
        return original(self, *args, **kwargs)

    keras.optimizers.Optimizer.apply = apply


def _place_of_a_loop() -> Place | None:
    """Return the script's line, or None if Keras runs the loop or no line is the script's."""
    own: Place | None = None
    for frame in callers():
        if _is_trainer(frame):
            return None
        if own is None and is_own(frame.f_code.co_filename):
            own = place_of(frame)
    return own


def _is_trainer(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(_TRAINERS)


def _advice(place: Place, devices: tuple[str, ...]) -> str:
    rewrite = rewrite_of("".join(linecache.getlines(place.path)), place.line)
    idle = ", ".join(devices[1:])
    lines = [
        f"this custom loop computes every batch on {devices[0]}; {idle} "
        f"{'have' if len(devices) > 2 else 'has'} nothing to do",
        "  evener does not rewrite loops; these three lines would use all devices:",
        *(f"    {line}" for line in rewrite.lines),
        *_remarks(rewrite),
    ]
    return "\n".join(lines)


def _remarks(rewrite: Rewrite) -> list[str]:
    remarks: list[str] = []
    if rewrite.body is not None:
        first, last = rewrite.body
        remarks.append(f"  with lines {first} to {last} as a function, step")
    if rewrite.result is not None:
        remarks.append(
            f"  {rewrite.result} is then one value per replica: "
            f"strategy.reduce('SUM', {rewrite.result}, axis=None) adds them up"
        )
    return remarks
