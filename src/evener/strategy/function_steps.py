"""Steps of the functions that a strategy runs, kept with the functions."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from evener._tf_private.autograph import converted_as_by
from evener._tf_private.functions import body_of
from evener.strategy.distributed_step import DistributedStep
from evener.strategy.step_records import StepRecords
from evener.strategy.step_settings import StepSettings

_STEPS = "_evener_steps"


class FunctionSteps:
    """Steps of the functions that a strategy runs.

    Args:
        strategy: Strategy in whose replica context the functions run.
        step_type: Type of the steps.
        settings: Settings of the steps, with a controller.
        records: Records that follow the steps.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        step_type: type[DistributedStep[Any, Any]],
        settings: StepSettings,
        records: StepRecords,
    ) -> None:
        self._strategy = strategy
        self._step_type = step_type
        self._settings = settings
        self._records = records

    def find(self, fn: Callable[..., Any]) -> DistributedStep[..., Any]:
        """Return the step of a function; a new one for every call in a graph."""
        if not tf.executing_eagerly():
            return self._make(fn)
        # Kept with the function, so that both are freed together.
        steps = vars(fn).setdefault(_STEPS, weakref.WeakKeyDictionary())
        if self not in steps:
            body = body_of(fn)
            converted = converted_as_by(fn, body)
            steps[self] = self._make(converted, program=fn)
        return steps[self]

    def _make(
        self, fn: Callable[..., Any], program: Callable[..., Any] | None = None
    ) -> DistributedStep[..., Any]:
        run_once = functools.partial(tf.distribute.Strategy.run, self._strategy)

        @tf.autograph.experimental.do_not_convert
        def call(*args: Any, **kwargs: Any) -> Any:
            return run_once(fn, args=args, kwargs=kwargs)

        controller = self._settings.controller
        assert controller is not None
        step = self._step_type(
            call,
            self._settings,
            shares=controller.shares,
            program=program,
        )
        self._records.follow(step)
        return step
