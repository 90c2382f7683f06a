"""The object that a rewritten script calls where a training step begins.

::

    1. call     as written, observed           which code runs, what it calls and reads
    2. call     traced, run on all devices     variables put back; then run eagerly, and compared:
                                               the eager results are those that count
    3. ...      values still the same?  ──yes──► run on all devices
                       │ no
                       └► as in the first call, a few times; then as written for good

Whatever is not understood, fails or differs runs as it is written, and a note names the line.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from evener._tf_private.devices import explicit_device
from evener._tf_private.random_numbers import global_seed_for_now
from evener._tf_private.tapes import tape_is_recording
from evener.analysis.hoisting import Hoisted, Obstacle
from evener.run.eager_step import prevents
from evener.run.hoisting.code import Observed
from evener.run.hoisting.comparing import AsWritten, Comparison
from evener.run.hoisting.reads import Body, Call, check_arrays, check_shown, reads_of
from evener.run.hoisting.state import all_variables
from evener.run.hoisting.step import Step
from evener.run.hoisting.values import CannotHoist, Scalar
from evener.run.hoisting.variant import OTHER_DRAWS, Variant, traced
from evener.run.notes import Notes, is_other
from evener.run.user_line import UserLine
from evener.strategy import Strategy

_MOST_VARIANTS = 5
# A variant costs about as much as some steps save: those that change by epochs pay.
_CALLS_FOR_ANOTHER = 20
_MOST_KEPT = 6
_NUM_COMPARED_SHAPES = 4
_MOST_ATTEMPTS = 4
_PLACED = "it asks for another device by tf.device, and runs there"


class Hoister:
    """Runs the regions of a script.

    Args:
        strategy: The strategy of the run.
        notes: Says which lines run on all devices, and what prevents more.
        is_outside: Returns whether the calling code is no replica of a strategy.
    """

    def __init__(self, strategy: Strategy, notes: Notes, *, is_outside: Callable[[], bool]) -> None:
        self._strategy = strategy
        self._notes = notes
        self._is_outside = is_outside
        self._steps: dict[int, Step] = {}
        self._obstacles: dict[str, list[Obstacle]] = {}
        self._losses: list[tuple[str, int]] = []
        self._process = os.getpid()
        self._lock = threading.Lock()
        # Those of the strategy, which has to count every step: the script has not begun.
        self._others = all_variables()

    def add(self, path: str, found: Hoisted) -> None:
        """Add the regions of a file.

        Args:
            path: The file.
            found: Its regions, whose numbers no other file has, and what was found beside them.
        """
        for region in found.regions:
            self._steps[region.number] = Step(region=region, path=path)
        self._obstacles[path] = list(found.obstacles)
        self._losses += [(path, line) for line in found.lines_with_losses]

    @property
    def next_number(self) -> int:
        """The number for the first region of another file."""
        return len(self._steps)

    def explains(self, line: UserLine) -> bool:
        """Return whether the hoister itself says what becomes of the step at a line."""
        return any(step.covers(line) for step in self._steps.values())

    def obstacle_at(self, line: UserLine) -> str | None:
        """Return what keeps the step at a line, or statements before it, from all devices."""
        refused = [s.obstacle for s in self._steps.values() if s.obstacle and s.covers(line)]
        if refused:
            return refused[-1]
        found = [
            obstacle
            for obstacle in self._obstacles.get(line.path, ())
            if obstacle.line <= line.number
        ]
        return prevents(found[-1].line, found[-1].reason) if found else None

    def reasons(self) -> list[str]:
        """Return what keeps regions, and statements, from all devices."""
        refused = [step.obstacle for step in self._steps.values() if step.obstacle]
        return refused + [obstacle.reason for some in self._obstacles.values() for obstacle in some]

    def __call__(self, number: int, body: Body, read: Callable[[], tuple[Any, ...]]) -> Any:
        """Run a region on all devices; return its results, or None to run it as it is written.

        Args:
            number: The number of the region.
            body: The region as a function of its parameters.
            read: Returns the values of the parameters; raises NameError if one has none.
        """
        step = self._steps[number]
        if (
            step.obstacle is not None
            or not self._may_run()
            or not self._lock.acquire(blocking=False)
        ):
            return None
        try:
            if is_other(explicit_device(), self._strategy):
                raise CannotHoist(_PLACED)
            try:
                values = read()
            except NameError:
                return None
            check_shown(step.region, values)
            return self._run(step, Call.of(body, values[: len(step.region.parameters)]))
        except AsWritten as reason:
            self._refuse(step, str(reason))
            return reason.results
        except CannotHoist as reason:
            self._refuse(step, str(reason))
            return None
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def as_written(self, number: int) -> Iterator[None]:
        """Observe a region that runs as it is written, if that was asked for."""
        step = self._steps[number]
        asked, step.to_observe = step.to_observe, None
        if asked is None or not self._lock.acquire(blocking=False):
            yield
            return
        observed, num_placed = Observed(step.path, step.region.deferred), self._notes.num_placed
        try:
            with observed:
                yield
            try:
                if self._notes.num_placed > num_placed:
                    raise CannotHoist(_PLACED)
                self._was_observed(step, asked[0], asked[1], observed)
            except CannotHoist as reason:
                self._refuse(step, str(reason), observed)
        finally:
            self._lock.release()

    def _may_run(self) -> bool:
        return (
            tf.executing_eagerly()
            and os.getpid() == self._process
            and not tape_is_recording()
            and not tf.config.functions_run_eagerly()
            and self._is_outside()
        )

    def _run(self, step: Step, call: Call) -> Any:
        waiting = [] if step.pending is None else [step.pending]
        for variant in (*step.variants, *waiting):
            given = call.with_numbers(variant.places)
            if variant.is_for(given):
                return self._run_with_numbers(step, variant, given)
        step.num_observed += 1
        if step.num_observed > _MOST_VARIANTS + step.num_calls // _CALLS_FOR_ANOTHER:
            raise CannotHoist(f"{step.what_changes(call)} changes again and again")
        check_arrays(step.region, call.values)
        step.to_observe = call.with_numbers(step.places_of(call)), None
        return None

    def _was_observed(
        self, step: Step, call: Call, variant: Variant | None, observed: Observed
    ) -> None:
        """Keep what a step that ran as it is written has read.

        Raises:
            CannotHoist: If that cannot be known, or the step does more than compute.
        """
        if variant is not None:
            observed.code = {**variant.reads.code, **observed.code}
        reads = reads_of(step.region, step.path, observed, call, self._losses)
        if variant is None:
            places = (
                i for i, structure in enumerate(call.structures) if isinstance(structure, Scalar)
            )
            variant = step.pending = Variant(
                reads=reads, places=frozenset(places), num_draws=observed.num_draws
            )
            variant.function = traced(step.region, variant, call.body)
        if observed.num_draws != variant.num_draws:
            raise CannotHoist(OTHER_DRAWS)
        variant.reads = reads
        variant.observed.add(call.shapes)

    def _run_with_numbers(self, step: Step, variant: Variant, call: Call) -> Any:
        """Run a variant; if numbers of Python cannot be its arguments, run the step as written."""
        try:
            return self._run_variant(step, variant, call)
        except (CannotHoist, AsWritten) as problem:
            if not variant.places:
                raise
            step.forget_numbers(variant, problem)
            return problem.results if isinstance(problem, AsWritten) else None

    def _run_variant(self, step: Step, variant: Variant, call: Call) -> Any:
        variant.may_trace = variant.needs_trace = False
        try:
            is_verified = call.shapes in variant.verified and variant.was_compared_enough
            if is_verified or len(variant.verified) >= _NUM_COMPARED_SHAPES:
                results = variant.call(call, self._strategy)
                step.num_calls += 1
                return results
        except Exception:
            if not variant.needs_trace:
                raise
        variant.may_trace = call.shapes in variant.observed
        results = self._compare(step, variant, call)
        if variant.needs_trace and not variant.may_trace:
            step.to_observe = call, variant
        elif results is not None:
            variant.verified.add(call.shapes)
            variant.num_compared += 1
            if variant not in step.variants:
                step.variants = [variant, *step.variants[: _MOST_KEPT - 1]]
                step.pending = None
            self._note(step)
        return results

    def _compare(self, step: Step, variant: Variant, call: Call) -> Any:
        """Return the results of a call that was computed both ways; None if it has not run."""
        draws = variant.num_draws > 0
        seeded = global_seed_for_now if draws else contextlib.nullcontext
        try:
            with seeded():
                comparison = Comparison(variant, call, self._strategy, self._others)
                results = comparison.run()
        except CannotHoist as problem:
            # What comes out of a trace may be a copy, with the lines of it as its text.
            raise variant.problem or problem from None
        except AsWritten:
            raise
        except Exception as error:
            arrays = (tensor for tensor in call.tensors if isinstance(tensor, np.ndarray))
            is_wide = any(array.dtype == np.float64 for array in arrays)
            if is_wide and variant.may_trace and not variant.narrows and variant.problem is None:
                # Eagerly, TensorFlow makes float32 of such arrays beside tensors of float32.
                variant.narrows = True
                return self._compare(step, variant, call)
            self._failed(step, variant, error)
            return None
        if results is not None:
            self._observe_again(step, variant, comparison.observed, call, results)
        return results

    def _observe_again(
        self,
        step: Step,
        variant: Variant,
        observed: Observed,
        call: Call,
        results: tuple[Any, ...],
    ) -> None:
        """Take note of what a run as written does that earlier ones did not."""
        observed.code = {**variant.reads.code, **observed.code}
        if observed.problem is None and len(observed.code) == len(variant.reads.code):
            return
        try:
            variant.reads = reads_of(step.region, step.path, observed, call, self._losses)
        except CannotHoist as reason:
            raise AsWritten(str(reason), results) from None

    @staticmethod
    def _failed(step: Step, variant: Variant, error: Exception) -> None:
        """Judge what a run on all devices raised.

        Raises:
            CannotHoist: If the step cannot be traced.
        """
        if variant.problem is not None:
            raise variant.problem
        if variant.needs_trace and not variant.may_trace:
            return
        makes_variables = isinstance(error, ValueError) and "create" in str(error)
        if makes_variables and "ariable" in str(error) and step.num_attempts < _MOST_ATTEMPTS:
            step.num_attempts += 1
            step.num_observed -= 1
            step.pending = None
            return
        text = next(reversed(str(error).strip().splitlines()), "").strip()
        raise CannotHoist(f"it cannot be traced ({type(error).__name__}: {text[:120]})")

    def _note(self, step: Step) -> None:
        if not step.is_noted:
            step.is_noted = True
            devices = ", ".join(self._strategy.plan.device_names)
            region = step.region
            self._notes.add(f"lines {region.first} to {region.last} run on {devices}", step.line)

    def _refuse(self, step: Step, reason: str, observed: Observed | None = None) -> None:
        """Let a step run as it is written from now on, and note why if no part of it is left."""
        step.variants.clear()
        step.pending = None
        step.obstacle = prevents(step.region.first, reason)
        if observed is not None and observed.problem is not None and observed.problem[1]:
            path, number, _ = observed.problem
            is_here = path == step.path
            line = number if is_here else str(UserLine(path=path, number=number))
            step.obstacle = prevents(line, reason)
        parts = (other for other in self._steps.values() if other.overlaps(step))
        if all(part.obstacle is not None for part in parts):
            devices = self._strategy.plan.device_names
            self._notes.add_unpartitioned(devices, step.obstacle, step.line)
