"""Eager steps become functions: run, compared with what is written, given up if they differ.

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
import gc
import importlib.abc
import importlib.machinery
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from evener._tf_private.random_numbers import global_seed_for_now
from evener._tf_private.tapes import tape_is_recording
from evener._tf_private.tensors import Printed, explicit_device, is_eager_tensor, kept_prints
from evener.base.user_code import is_own
from evener.run.hoisted_guards import Observed, keep_operation_seeds
from evener.run.hoisted_step import (
    OTHER_DRAWS,
    AsWritten,
    Body,
    Step,
    StepCall,
    Variant,
    check_arrays,
    check_shown,
    reads_of,
    traced,
)
from evener.run.hoisted_values import CannotHoist, Scalar, hold, same
from evener.run.regions import HOOK, Hoisted, Obstacle, hoist_steps, prevents
from evener.run.script import Notes, Script, UserLine, is_other
from evener.strategy import Strategy
from evener.strategy.rounding import as_array, magnitude, relative_difference

ROUNDING = 1e-4
"""A larger relative difference of float32 numbers is judged by what rounding does to the step."""
_ROUNDING_OF_HALF = 3e-2
_SENSITIVITY = 30.0
_SMALLEST = 1e-3


def value_bytes(variable: tf.Variable) -> bytes:
    """Return the value of a variable as bytes, in which NaN is equal to itself."""
    return variable.numpy().tobytes()


def all_variables() -> list[tf.Variable]:
    # isinstance() would ask lazily imported modules, which are among all objects, for their class.
    variables = (each for each in gc.get_objects() if issubclass(type(each), tf.Variable))
    eager = (v for v in variables if is_eager_tensor(getattr(v, "handle", None)))
    return [variable for variable in eager if variable.is_initialized()]


def is_of_evener(variable: tf.Variable) -> bool:
    """Return whether a variable is one of evener's own: those tell times and shares."""
    return not variable.trainable and variable.name.rpartition("/")[2].startswith("evener_")


def _differences(expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]) -> list[float]:
    """Return the relative difference of each array, in units of the rounding of its type."""
    if len(expected) != len(actual):
        return [math.inf]
    least = _SMALLEST * max((magnitude(array) for array in expected), default=0.0)
    found = []
    for array, other in zip(expected, actual, strict=True):
        unit = _ROUNDING_OF_HALF if array.dtype.itemsize == 2 and magnitude(array) > 0 else ROUNDING
        is_same_type = array.dtype == other.dtype
        found.append(relative_difference(array, other, least) / unit if is_same_type else math.inf)
    return found


def _is_rounding(found: Sequence[float], disturbed: Sequence[float]) -> bool:
    pairs = zip(found, disturbed, strict=False)
    are_near = all(value <= 1 + _SENSITIVITY * other for value, other in pairs)
    return len(found) == len(disturbed) and are_near


Outcome = tuple[Any, list[np.ndarray]]
"""The results of a step with what it prints, and the values of all variables behind it."""


class StepComparison:
    """Runs a step both ways. Results and effects are those of the step as written."""

    def __init__(
        self, variant: Variant, call: StepCall, strategy: Strategy, others: Sequence[tf.Variable]
    ) -> None:
        self._variant = variant
        self._call = call
        self._strategy = strategy
        left_out = {id(variable) for variable in others}
        self._variables = [each for each in all_variables() if id(each) not in left_out]
        self._before = self._values()
        self._put_back_seeds = keep_operation_seeds()
        self.observed = Observed()

    def run(self) -> tuple[Any, ...] | None:
        """Return the results; None if the step as written fails, which then has no effect."""
        try:
            on_all = self._on_all_devices()
            changed = self._variant.reads.changed()
        finally:
            self._undo()
        if changed is not None:
            raise CannotHoist(f"it changes {changed}")
        try:
            with kept_prints(shows=True) as prints, self.observed:
                expected = self._call.run()
        except AsWritten:
            raise
        except BaseException:
            # As written, it fails again, at its own line.
            self._undo()
            return None
        changed = self._variant.reads.changed()
        if changed is not None:
            raise AsWritten(f"it changes {changed}", expected)
        if self.observed.num_draws != self._variant.num_draws:
            raise AsWritten(OTHER_DRAWS, expected)
        eager = _shown(expected, prints), self._values()
        found = _differences_of_outcomes(eager, on_all)
        is_near = _is_rounding(found, [0.0] * len(found))
        if not is_near and not _is_rounding(found, self._disturbed(eager, on_all)):
            raise AsWritten("as a function it computes other values than as written", expected)
        return expected

    def _values(self) -> list[np.ndarray]:
        return [variable.numpy() for variable in self._variables]

    def _assign(self, values: Sequence[np.ndarray]) -> None:
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)

    def _on_all_devices(self) -> Outcome:
        return _shown(*self._variant.call(self._call, self._strategy)), self._values()

    def _undo(self) -> None:
        self._assign(self._before)
        self._variant.reads.restore()
        self._put_back_seeds()

    def _disturbed(self, eager: Outcome, actual: Outcome) -> list[float]:
        """Return how much rounding changes results and variables; its effects are undone."""
        put_back_seeds: Callable[[], None] = keep_operation_seeds()
        self._put_back_seeds()
        generator = np.random.default_rng(0)
        values = []
        for value in self._before:
            if value.dtype in (np.float32, np.float64):
                to = np.where(generator.random(value.shape) < 0.5, -np.inf, np.inf)
                value = np.nextafter(value, to.astype(value.dtype))
            values.append(np.asarray(value))
        self._assign(values)
        try:
            if self._variant.num_draws:
                # Eager kernels draw other numbers when they draw again.
                return _differences_of_outcomes(actual, self._on_all_devices())
            with kept_prints() as prints:
                results = self._call.run()
            return _differences_of_outcomes(eager, (_shown(results, prints), self._values()))
        finally:
            self._undo()
            self._assign(eager[1])
            put_back_seeds()


_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e[-+]?\d+)?|-?\bnan\b|-?\binf\b")


def _shown(results: tuple[Any, ...], prints: Sequence[Printed]) -> Any:
    """Return results of a step, and the numbers in what it prints apart from the text."""
    text = "\0".join(bytes(each.text.numpy()).decode(errors="replace") for each in prints)
    numbers = np.array([float(number) for number in _NUMBER.findall(text)])
    return results, _NUMBER.sub("0", text), tf.constant(numbers, tf.float64)


def _differences_of_outcomes(expected: Outcome, actual: Outcome) -> list[float]:
    left = tf.nest.flatten(expected[0], expand_composites=True)
    right = tf.nest.flatten(actual[0], expand_composites=True)
    if len(left) != len(right):
        return [math.inf]
    pairs = list(zip(left, right, strict=True))
    if any(not same(a, b) and not (tf.is_tensor(a) and tf.is_tensor(b)) for a, b in pairs):
        return [math.inf]
    others = [pair for pair in pairs if tf.is_tensor(pair[0]) and pair[0] is not pair[1]]
    handles = (tf.resource, tf.variant)
    left, right = (
        [as_array(pair[side]) for pair in others if pair[side].dtype not in handles]
        for side in (0, 1)
    )
    return [*_differences(left, right), *_differences(expected[1], actual[1])]


_MOST_VARIANTS = 5
# A variant costs about as much as some steps save: those that change by epochs pay.
_CALLS_FOR_ANOTHER = 20
_MOST_KEPT = 6
_NUM_COMPARED_SHAPES = 4
_MOST_ATTEMPTS = 4
_PLACED = "it asks for another device by tf.device, and runs there"


class Hoister:
    def __init__(self, strategy: Strategy, notes: Notes, *, is_outside: Callable[[], bool]) -> None:
        self._strategy = strategy
        self._notes = notes
        self._is_outside = is_outside
        self._steps: dict[int, Step] = {}
        self._obstacles: dict[str, Sequence[Obstacle]] = {}
        # Lines that call a traced function, which runs on all devices by itself.
        self.divided: set[UserLine] = set()
        self._losses: list[tuple[str, int]] = []
        self._process = os.getpid()
        self._lock = threading.Lock()
        # Those of the strategy, which has to count every step: the script has not begun.
        self._others = all_variables()
        self.num_begun = 0  # Number of calls of regions that are not refused

    def rewritten(self, source: str, path: str, *, is_module: bool) -> Hoisted | None:
        """Return a file whose training steps call this; None if it has none."""
        number = len(self._steps)
        try:
            found = hoist_steps(source, path, first_number=number, in_functions=is_module)
        except (SyntaxError, ValueError, RecursionError):
            # Python reports it when the file runs.
            return None
        self._steps |= {r.number: Step(region=r, path=path) for r in found.regions}
        self._obstacles[path] = found.obstacles
        self._losses += [(path, line) for line in found.lines_with_losses]
        return found if found.regions else None

    def explains(self, line: UserLine) -> bool:
        return any(step.covers(line) for step in self._steps.values())

    def obstacle_at(self, line: UserLine) -> str | None:
        if tf.config.functions_run_eagerly():
            return "tf.config.run_functions_eagerly(True) asks for that"
        refused = [s.obstacle for s in self._steps.values() if s.obstacle and s.covers(line)]
        if refused:
            return refused[-1]
        before = [each for each in self._obstacles.get(line.path, ()) if each.line <= line.number]
        return prevents(before[-1].line, before[-1].reason) if before else None

    def reasons(self) -> list[str]:
        refused = [step.obstacle for step in self._steps.values() if step.obstacle]
        return refused + [obstacle.reason for some in self._obstacles.values() for obstacle in some]

    def __call__(self, number: int, body: Body, read: Callable[[], tuple[Any, ...]]) -> Any:
        """Run a region on all devices; return its results, or None to run it as it is written."""
        step = self._steps[number]
        is_other_mode = not tf.executing_eagerly() or tf.config.functions_run_eagerly()
        if step.obstacle is not None or is_other_mode or tape_is_recording():
            return None
        if os.getpid() != self._process or not self._is_outside():
            return None
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if is_other(explicit_device(), self._strategy):
                raise CannotHoist(_PLACED)
            try:
                values = read()
            except NameError:
                return None
            check_shown(step.region, values)
            self.num_begun += 1
            call = StepCall.of(body, values[: len(step.region.parameters)])
            for variant in filter(None, (*step.variants, step.pending)):
                given, reads = call.with_numbers(variant.places), variant.reads
                if given.structures != reads.structures or reads.changed() is not None:
                    continue
                if hold(variant.conditions, given.values):
                    return self._run_with_numbers(step, variant, given)
            step.num_observed += 1
            if step.num_observed > _MOST_VARIANTS + step.num_calls // _CALLS_FOR_ANOTHER:
                raise CannotHoist(f"{step.what_changes(call)} changes again and again")
            check_arrays(step.region, call.values)
            step.to_observe = call.with_numbers(step.places_of(call)), None
            return None
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
            if self._divides(step):
                self._refuse(step, "it calls a @tf.function, which runs on all devices by itself")
                return
            try:
                if self._notes.num_placed > num_placed:
                    raise CannotHoist(_PLACED)
                call, variant = asked
                if variant is not None:
                    observed.code = {**variant.reads.code, **observed.code}
                reads = reads_of(step.region, step.path, observed, call, self._losses)
                if variant is None:
                    structures = enumerate(call.structures)
                    places = frozenset(i for i, each in structures if isinstance(each, Scalar))
                    num_draws = observed.num_draws
                    variant = Variant(reads=reads, places=places, num_draws=num_draws)
                    step.pending = variant
                    variant.function = traced(step.region, variant, call.body)
                if observed.num_draws != variant.num_draws:
                    raise CannotHoist(OTHER_DRAWS)
                variant.reads = reads
                variant.observed.add(call.shapes)
            except CannotHoist as reason:
                self._refuse(step, str(reason), observed)
        finally:
            self._lock.release()

    def _divides(self, step: Step) -> bool:
        return any(step.holds(line) for line in self.divided)

    def _run_with_numbers(self, step: Step, variant: Variant, call: StepCall) -> Any:
        try:
            variant.may_trace = variant.needs_trace = False
            try:
                # Numbers of Python are compared for two of their values.
                is_compared = variant.num_compared > 1 or not variant.places
                is_verified = call.shapes in variant.verified and is_compared
                if is_verified or len(variant.verified) >= _NUM_COMPARED_SHAPES:
                    results, prints = variant.call(call, self._strategy)
                    for each in prints:
                        each.show()
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
                if not step.is_noted:
                    step.is_noted = True
                    devices = ", ".join(self._strategy.plan.device_names)
                    first, last = step.region.first, step.region.last
                    where = UserLine(step.path, first)
                    self._notes.add(f"lines {first} to {last} run on {devices}", where)
            return results
        except (CannotHoist, AsWritten) as problem:
            if not variant.places:
                raise
            step.forget_numbers(variant, problem)
            return problem.results if isinstance(problem, AsWritten) else None

    def _compare(self, step: Step, variant: Variant, call: StepCall) -> Any:
        """Return the results of a call that was computed both ways; None if it has not run."""
        seeded = global_seed_for_now if variant.num_draws else contextlib.nullcontext
        try:
            with seeded():
                comparison = StepComparison(variant, call, self._strategy, self._others)
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
            if variant.problem is not None:
                raise variant.problem from error
            if variant.needs_trace and not variant.may_trace:
                return None
            makes_variables = isinstance(error, ValueError) and "create" in str(error)
            if makes_variables and "ariable" in str(error) and step.num_attempts < _MOST_ATTEMPTS:
                step.num_attempts += 1
                step.num_observed -= 1
                step.pending = None
                return None
            text = next(reversed(str(error).strip().splitlines()), "").strip()
            reason = f"it cannot be traced ({type(error).__name__}: {text[:120]})"
            raise CannotHoist(reason) from error
        if results is None:
            return None
        # What this run as written does and earlier ones did not.
        observed = comparison.observed
        observed.code = {**variant.reads.code, **observed.code}
        if observed.problem is not None or len(observed.code) > len(variant.reads.code):
            try:
                variant.reads = reads_of(step.region, step.path, observed, call, self._losses)
            except CannotHoist as reason:
                raise AsWritten(str(reason), results) from None
        return results

    def _refuse(self, step: Step, reason: str, observed: Observed | None = None) -> None:
        """Let a step run as it is written from now on, and note why if no part of it is left."""
        step.variants.clear()
        step.pending = None
        first, last = step.region.first, step.region.last
        line: int | str = first
        if observed is not None and observed.problem is not None and observed.problem[1]:
            path, line, _ = observed.problem
            if path != step.path:
                line = str(UserLine(path, line))
        step.obstacle = prevents(line, reason)
        here = (each for each in self._steps.values() if each.path == step.path)
        parts = (p for p in here if first <= p.region.last and p.region.first <= last)
        if not self._divides(step) and all(part.obstacle is not None for part in parts):
            devices, where = self._strategy.plan.device_names, UserLine(step.path, first)
            self._notes.add_unpartitioned(devices, step.obstacle, where)


def hoist_script(script: Script, hoister: Hoister) -> Hoisted | None:
    """Return a script whose training steps call a hoister; None if it has none."""
    sys.meta_path.insert(0, _OwnModules(Path(script.path).parent, hoister))
    return hoister.rewritten(script.source, script.path, is_module=False)


class _OwnModules(importlib.abc.MetaPathFinder):
    """Finds the modules in the folder of a script, to rewrite them."""

    def __init__(self, folder: Path, hoister: Hoister) -> None:
        self._folder = folder
        self._hoister = hoister

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not importlib.machinery.SourceFileLoader:
            return None
        file = spec.loader.path
        if not Path(file).is_relative_to(self._folder) or not is_own(file):
            return None
        spec.loader = _Loader(fullname, file, self._hoister)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module, rewritten if it has training steps. Nothing of it is cached in files."""

    def __init__(self, fullname: str, path: str, hoister: Hoister) -> None:
        super().__init__(fullname, path)
        self._hoister = hoister

    def get_code(self, fullname: str) -> CodeType | None:
        source = self.get_source(fullname) or ""
        found = self._hoister.rewritten(source, str(self.path), is_module=True)
        if found is None:
            return super().get_code(fullname)
        return compile(found.tree, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)[HOOK] = self._hoister
        super().exec_module(module)
