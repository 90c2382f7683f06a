"""What Keras calls once per execution: the steps, and what happens between them.

before the first   the steps are traced, from the shapes of the data
the first          if memory runs out, again with smaller micro-batches
after each         what the steps have found is told
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from evener import _tf_private
from evener.engine.staged import exhausted, split
from evener.engine.staged.loops.run import say_that_it_is_slow
from evener.engine.staged.program import too_few_samples
from evener.engine.staged.step import Steps
from evener.errors import EvenerError

_CAREFUL_EXECUTIONS = 3


class Execution:
    """Runs the steps of one execution.

    Args:
        steps: The steps of the model.
        kind: ``"train"`` or ``"test"``.
        renew: Makes new steps for the strategy's plan of that moment.
    """

    def __init__(self, steps: Steps, kind: str, *, renew: Callable[[], Steps]) -> None:
        self.steps = steps
        self._trains = kind == "train"
        self._renew = renew
        self._loop = _tf_private.step_loop(steps.program.model, getattr(steps, kind))
        self._careful_loop: Callable[[Any], Any] | None = None
        # Memory runs out in the first steps or never.
        careful = self._trains and exhausted.can_happen(steps.program.plan)
        self._careful_left = _CAREFUL_EXECUTIONS if careful else 0
        self._told = False

    def __call__(self, iterator: Any) -> Any:
        """Run one execution; return its logs."""
        program = self.steps.program
        if program.model.run_eagerly or tf.config.functions_run_eagerly():
            say_that_it_is_slow(program.strategy)
        if self._careful_left:
            logs = self._run_carefully(iterator)
            self._careful_left -= 1
        else:
            logs = self._run(self._loop, iterator)
        self.steps.watch.tell()
        return logs

    def _run(self, loop: Callable[[Any], Any], iterator: Any) -> Any:
        if self.steps.needs_spec(training=self._trains) or self._needs_samples():
            iterator = self._prepare(iterator)
        try:
            return loop(iterator)
        except tf.errors.InvalidArgumentError as error:
            # In a graph, the size of a batch is only known when the step runs.
            known = _known(error)
            if known is None:
                raise
            raise known from error

    def _run_carefully(self, iterator: Iterator[Any]) -> Any:
        """Run one of the first executions, in smaller micro-batches if memory runs out.

        The batch is held until it has been trained on, and nothing is written before all
        gradients are there, so no batch is lost and none counts twice.
        """
        model = self.steps.program.model
        batch = next(iterator)
        began_with = self.steps.program.plan
        first: tf.errors.OpError | None = None
        while True:
            if self._careful_loop is None:
                self._careful_loop = _tf_private.step_loop(model, self.steps.train_carefully)
            try:
                logs = self._run(self._careful_loop, iter([batch]))
            except exhausted.ERRORS as error:
                first = first or error
                self._make_smaller(error, batch)
                continue
            self.steps.end_update()
            if first is not None and not self._told:
                exhausted.tell(began_with, self.steps.program.plan, first)
                self._told = True
            rest = list(itertools.islice(iterator, model.steps_per_execution - 1))
            return self._run(self._loop, iter(rest)) if rest else logs

    def _make_smaller(self, error: tf.errors.OpError, batch: Any) -> None:
        """Go on with twice as many micro-batches, or give up."""
        program = self.steps.program
        num_samples = int(split.batch_size(split.unpack(without_optionals(batch))))
        if self.steps.has_begun_to_update():
            raise exhausted.while_updating(self.steps, num_samples, error) from error
        smaller = exhausted.smaller(program.plan, error, num_samples)
        if smaller is None:
            raise exhausted.gives_up(self.steps, num_samples, error) from error
        program.strategy.replan(smaller)
        self.steps = self._renew()
        self._loop = _tf_private.step_loop(program.model, self.steps.train)
        self._careful_loop = None

    def _prepare(self, iterator: Any) -> Any:
        """Prepare the steps; return an iterator that still has every batch."""
        if isinstance(iterator, tf.data.Iterator):
            self._trace(iterator.element_spec)
            if not self._needs_samples():
                return iterator
        first = next(iterator)
        self._trace(first)
        if self._needs_samples():
            self.steps.learn_added(without_optionals(first), training=self._trains)
        return itertools.chain([first], iterator)

    def _trace(self, spec: Any) -> None:
        if self.steps.needs_spec(training=self._trains):
            self.steps.prepare(without_optionals(spec), training=self._trains)

    def _needs_samples(self) -> bool:
        return self.steps.needs_samples(training=self._trains)


def _known(error: tf.errors.InvalidArgumentError) -> EvenerError | None:
    """Return the error of evener that a check in the graph has raised, or None."""
    for known in (split.no_samples(), too_few_samples()):
        if known.code in error.message:
            return known
    return None


def without_optionals(batch: Any) -> Any:
    """Return a batch, or its spec, with None for what the data leaves out."""
    kinds = (tf.experimental.Optional, tf.OptionalSpec)
    return keras.tree.map_structure(lambda leaf: None if isinstance(leaf, kinds) else leaf, batch)
