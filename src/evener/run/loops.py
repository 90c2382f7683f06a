"""A script's own training loops: traced functions run on all devices, eager steps get a note.

A `tf.function` that the script calls with a batch becomes one call of ``strategy.run``: it has the
results that it has on one device. What nobody traced runs as it is written, on one device,
because tracing could change what it means; a note names the line that prevents more.
"""

from __future__ import annotations

import functools
import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import keras
import tensorflow as tf

from evener._tf_private.datasets import running_bodies, take_batches
from evener._tf_private.functions import CALLS_OF_SCRIPTS
from evener._tf_private.patches import Patch
from evener._tf_private.tapes import tape_is_recording
from evener.own_code import is_own
from evener.run.advice import advice_for
from evener.run.hoisting import Hoister
from evener.run.notes import Notes
from evener.run.replace import instead_of
from evener.run.user_line import line_of_loop, user_line
from evener.strategy import Strategy
from evener.strategy.arguments import has_batch

_UPDATES = Patch(
    "updates of scripts",
    "keras:optimizers.Optimizer.apply",
    why="A training step that nobody traced ends with an update.",
    if_it_changes="`evener run` does not say that a step runs on one device.",
)


def run_loops(strategy: Strategy, notes: Notes, hoister: Hoister | None = None) -> None:
    """Let the script's traced functions run on all devices, and note eager training steps.

    Args:
        strategy: Strategy that runs them.
        notes: Notes about each function, and about the first eager step.
        hoister: Rewriter of eager steps into functions; None to leave them.
    """
    if not strategy.is_partitioned:
        return
    _distribute_functions(strategy, notes)
    _notice_steps(strategy, notes, hoister)


def is_called_by_script(caller: FrameType) -> bool:
    """Return whether a traced function is called by a line of the script, and is no part of a step.

    Args:
        caller: Frame of the call.
    """
    return (
        tf.executing_eagerly()
        and is_own(caller.f_code.co_filename)
        and not tf.config.functions_run_eagerly()
        and not tape_is_recording()
    )


def outside(strategy: Strategy) -> Callable[[], bool]:
    """Return a function that returns whether its caller runs outside of replicas."""
    return functools.partial(_is_outside, strategy)


def _distribute_functions(strategy: Strategy, notes: Notes) -> None:
    """Let a `tf.function` that the script calls with a batch run on all devices."""
    devices = ", ".join(strategy.plan.device_names)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @instead_of(original)
        def __call__(function: Any, *args: Any, **kwargs: Any) -> Any:
            if not (_is_outside(strategy) and is_called_by_script(sys._getframe(1))):
                return original(function, *args, **kwargs)
            name = getattr(function.python_function, "__name__", "a function")
            if not has_batch((args, kwargs)):
                take_batches(function)
                with running_bodies(functools.partial(_run_body, name)):
                    return original(function, *args, **kwargs)
            notes.add(f"{name} runs on {devices}", user_line())
            return strategy.run(function, args=args, kwargs=kwargs)

        return __call__

    def _run_body(name: str, body: Callable[[Any], Any], batch: Any) -> Any:
        if not _is_outside(strategy) or not has_batch(batch):
            return body(batch)
        notes.add(f"{name} takes its batches itself, and each runs on {devices}", user_line())
        return strategy.run(body, args=(batch,))

    CALLS_OF_SCRIPTS.apply(wrap)


def _notice_steps(strategy: Strategy, notes: Notes, hoister: Hoister | None) -> None:
    """Note the first optimizer that is applied outside of ``run``, ``fit`` and functions."""
    _UPDATES.apply(lambda original: _noticing(original, strategy, notes, hoister))


def _noticing(
    original: Callable[..., Any], strategy: Strategy, notes: Notes, hoister: Hoister | None
) -> Callable[..., Any]:
    is_noted = False

    @instead_of(original)
    def apply(self: keras.optimizers.Optimizer, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_noted
        line = line_of_loop() if not is_noted and _is_outside(strategy) else None
        if line is not None and not (hoister is not None and hoister.explains(line)):
            source = "".join(linecache.getlines(line.path))
            advice = advice_for(source, line.number, is_traced=not tf.executing_eagerly())
            if hoister is not None:
                advice = hoister.obstacle_at(line) or advice
            if advice is not None:
                is_noted = True
                notes.add_unpartitioned(strategy.plan.device_names, advice, line)
        return original(self, *args, **kwargs)

    return apply


def _is_outside(strategy: Strategy) -> bool:
    """Return whether this is no replica: neither of the strategy nor of another one."""
    if not tf.distribute.has_strategy():
        return True
    return tf.distribute.in_cross_replica_context() and tf.distribute.get_strategy() is strategy
