"""Noticing a custom loop outside of ``strategy.run``, and saying what would distribute it."""

from __future__ import annotations

import linecache
from types import FrameType
from typing import Any

import keras
import tensorflow as tf

from evener.engine import Strategy
from evener.errors import RunError
from evener.launch.notes import Notes
from evener.launch.own_strategy import Made, calls_run, distributes, name_of
from evener.launch.place import Place, callers, is_own, place_of
from evener.launch.replace import instead_of
from evener.launch.rewrite import Rewrite, rewrite_of

# The modules in whose hands an optimizer is part of `fit`.
_TRAINERS = ("keras.src.backend.tensorflow.trainer", "keras.src.trainers")


def notice_loops(strategy: Strategy, notes: Notes, made: Made) -> None:
    """Notice optimizers that are applied outside of ``strategy.run`` and of ``fit``.

    If the script makes no strategy, the first is told of. If it does, and never calls ``run``,
    the first ends it with RUN-006: all the work would be that of one device.

    Args:
        strategy: What the loop could use.
        notes: Where it is told.
        made: Where the script makes its strategy.
    """
    if len(strategy.replica_devices) == 1:
        return
    original = keras.optimizers.Optimizer.apply
    told = False

    @instead_of(original)
    def apply(self: keras.optimizers.Optimizer, *args: Any, **kwargs: Any) -> Any:
        nonlocal told
        place = _place_of_a_loop() if _is_outside(strategy) else None
        if place is not None:
            runs = made.place is not None and _calls_run(made.place, place)
            if made.place is not None and not runs and _trains_nothing_else(strategy):
                raise _without_run(made.place, place, strategy.replica_devices)
            if not told and not runs and not tf.distribute.has_strategy():
                told = True
                notes.tell(_advice(place, strategy.replica_devices), place)
        return original(self, *args, **kwargs)

    keras.optimizers.Optimizer.apply = apply


def _is_outside(strategy: Strategy) -> bool:
    """Return whether this is no replica: neither of the strategy nor of another one."""
    if not tf.distribute.has_strategy():
        return True
    return tf.distribute.in_cross_replica_context() and tf.distribute.get_strategy() is strategy


def _calls_run(made: Place, place: Place) -> bool:
    """Return whether the script calls ``strategy.run`` somewhere.

    Then it applies optimizers outside of it for other ends, such as to make their variables
    before a checkpoint is restored.
    """
    return any(calls_run(_text(one.path)) for one in (made, place))


def _trains_nothing_else(strategy: Strategy) -> bool:
    """Return whether no device has computed anything yet for the strategy, as in ``fit``."""
    with tf.init_scope():
        return strategy.sharing.num_steps == 0


def _without_run(made: Place, place: Place, devices: tuple[str, ...]) -> RunError:
    source = _text(place.path)
    name = name_of(_text(made.path), made.line)
    rewrite = rewrite_of(source, place.line, name)
    _, distribute, run = rewrite.lines
    lines = [run] if distributes(source) else [distribute, run]
    error = RunError(
        "RUN-006",
        f"{place}: weights are updated outside of {name}.run, which the script never calls.",
        why=f"The script makes a strategy at {made}, but only what {name}.run calls is computed "
        f"on all devices: this loop would keep {devices[0]} busy alone.",
        fix="\n".join([
            f"{'this line uses' if len(lines) == 1 else 'these lines use'} all devices:",
            *(f"    {line}" for line in lines),
            *_remarks(rewrite, name),
        ]),
    )  # fmt: skip
    error.add_note(place.as_in_a_traceback())
    return error


def _text(path: str) -> str:
    return "".join(linecache.getlines(path))


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
    rewrite = rewrite_of(_text(place.path), place.line)
    idle = ", ".join(devices[1:])
    lines = [
        f"this custom loop computes every batch on {devices[0]}; {idle} "
        f"{'have' if len(devices) > 2 else 'has'} nothing to do",
        "  evener does not rewrite loops; these three lines would use all devices:",
        *(f"    {line}" for line in rewrite.lines),
        *_remarks(rewrite, "strategy"),
    ]
    return "\n".join(lines)


def _remarks(rewrite: Rewrite, strategy: str) -> list[str]:
    remarks: list[str] = []
    if rewrite.body is not None:
        first, last = rewrite.body
        remarks.append(f"  with lines {first} to {last} as a function, step")
    if rewrite.result is not None:
        remarks.append(
            f"  {rewrite.result} is then one value per replica: "
            f"{strategy}.reduce('SUM', {rewrite.result}, axis=None) adds them up"
        )
    return remarks
