"""Training functions of Keras's models while plans are tried: a function for each plan."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf


class Trial(Protocol):
    """Trial of plans; see `evener.strategy.run_trial`."""

    @property
    def is_over(self) -> bool:
        """Whether the plan is chosen."""
        ...

    @property
    def current(self) -> int:
        """Number of the plan of the next step."""
        ...

    @property
    def start(self) -> int:
        """Number of the first plan."""
        ...

    def run(
        self,
        step: object,
        run: Callable[[int], Any],
        *,
        repeatable: Callable[[], Callable[[int], Any] | None] | None = None,
        may_leave_xla: bool = False,
    ) -> Any:
        """Run a step by the current plan, whose number ``run`` is given."""
        ...


def tried_function(
    model: Any,
    trial: Trial,
    make: Callable[[], Callable[[Any], Any]],
    *,
    may_leave_xla: bool,
) -> Any:
    """Return a training function that has a function of Keras's for each plan.

    Why: Keras has one training function, which is traced once, and the plan is a part of the trace.
    If it changes: ``fit`` trains by the plan that it began with.

    Args:
        model: The model.
        trial: Trial of plans.
        make: Function that makes the training function, which is traced when it is called first.
        may_leave_xla: Whether XLA compiles it, and the program does not insist on that.
    """
    functions: dict[int, Callable[[Any], Any]] = {}
    is_settled = False

    def run(iterator: Any, number: int) -> Any:
        if number not in functions:
            functions[number] = make()
        return functions[number](iterator)

    def settle() -> None:
        nonlocal is_settled
        is_settled = True
        for number in functions.keys() - {trial.current}:
            del functions[number]
        if trial.current != trial.start:
            # They were traced for the plan of the start; Keras makes others when it needs them.
            model.test_function = model.predict_function = None

    def call(iterator: Any) -> Any:
        if trial.is_over:
            if not is_settled:
                settle()
            return run(iterator, trial.current)
        return trial.run(
            call,
            functools.partial(run, iterator),
            repeatable=lambda: _repeatable(iterator, model.steps_per_execution, run),
            may_leave_xla=may_leave_xla,
        )

    return call


def _repeatable(
    iterator: Any, num_batches: int, run: Callable[[Any, int], Any]
) -> Callable[[int], Any] | None:
    """Return a function that runs a step on the next batches, as often as it is called.

    Args:
        iterator: Iterator of batches, from which they are taken.
        num_batches: Number of batches of a call.
        run: Function of an iterator and the number of a plan.

    Returns:
        The function, or None for batches that no other iterator can give.
    """
    is_of_data = isinstance(iterator, tf.data.Iterator)
    spec: Any = iterator.element_spec if is_of_data else None
    if not all(isinstance(part, tf.TensorSpec) for part in tf.nest.flatten(spec)) and is_of_data:
        return None
    batches = list(itertools.islice(iterator, num_batches))
    if not batches:
        # At the end of the data, the function says so.
        return functools.partial(run, iterator)

    def again() -> Any:
        if not is_of_data:
            return iter(batches)
        return iter(tf.data.Dataset.from_generator(lambda: batches, output_signature=spec))

    return lambda number: run(again(), number)
