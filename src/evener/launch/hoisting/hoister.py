"""What a rewritten script calls where a training step begins.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener import _tf_private
from evener.analysis.hoisting import Hoisted, Obstacle, Region
from evener.engine import Strategy
from evener.launch.hoisting.code import (
    Observed,
    attributes_read,
    check_code,
    functions_of,
    globals_read,
    keep_operation_seeds,
)
from evener.launch.hoisting.graph import check_operations
from evener.launch.hoisting.guards import Globals, Guards
from evener.launch.hoisting.state import State, all_variables, differences, is_rounding, numbers_of
from evener.launch.hoisting.values import (
    PLAIN,
    CannotHoist,
    Fixed,
    Given,
    Leaf,
    Nest,
    Number,
    put_together,
    results_apart,
    same,
    take_apart,
)
from evener.launch.notes import Notes
from evener.launch.user_line import UserLine

_MOST_VARIANTS = 5
_NUM_VERIFIED_SHAPES = 4
_MOST_TRACES = 6
_MOST_ATTEMPTS = 4


# Functions that name an attribute by a value.
_BY_NAME = {"getattr", "vars", "hasattr"}
# What a step cannot change. It changes no list of Python, or it is not hoisted.
_CONSTANT = (*PLAIN, np.generic, np.ndarray, tf.Tensor, list, range)
Body = Callable[..., tuple[Any, ...]]


class _NotObserved(Exception):
    """A trace would begin for sizes that were not seen as written."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Reads:
    """The values that a step reads beside its tensors."""

    structures: list[Any]
    guards: Guards
    globals: list[Globals]
    code: dict[CodeType, dict[str, Any]]
    settings: Any

    def hold_for(self, structures: Sequence[Any]) -> bool:
        return structures == self.structures and self.changed() is None

    def changed(self) -> str | None:
        if self.settings != _settings():
            return "keras.config"
        found = next((one.path for one in self.globals if not one.holds()), None)
        return found or self.guards.changed()

    def restore(self) -> None:
        self.guards.restore()
        for one in self.globals:
            one.restore()


@dataclass(slots=True, kw_only=True, eq=False)
class _Variant:
    """A step for one set of values of Python."""

    reads: _Reads
    function: Any = None
    results: Any = None
    problem: CannotHoist | None = None
    observed: set[Any] = field(default_factory=set)
    verified: set[Any] = field(default_factory=set)
    num_traces: int = 0
    may_trace: bool = False
    needs_trace: bool = False
    narrows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Asked:
    """A call that is to be observed, and the variant that it is for, if there is one already."""

    body: Body
    values: tuple[Any, ...]
    structures: list[Any]
    shapes: Any
    variant: _Variant | None


@dataclass(slots=True, kw_only=True, eq=False)
class _Step:
    """A region of the script, and what became of it."""

    region: Region
    path: str
    variants: list[_Variant] = field(default_factory=list)
    pending: _Variant | None = None
    to_observe: _Asked | None = None
    num_observed: int = 0
    num_attempts: int = 0
    changed: str | None = None
    is_refused: bool = False
    is_noted: bool = False

    @property
    def line(self) -> UserLine:
        return UserLine(path=self.path, number=self.region.first)


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
        self._steps: dict[int, _Step] = {}
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
            self._steps[region.number] = _Step(region=region, path=path)
        self._obstacles[path] = list(found.obstacles)
        self._losses += [(path, line) for line in found.lines_with_losses]

    @property
    def next_number(self) -> int:
        """The number for the first region of another file."""
        return len(self._steps)

    def explains(self, line: UserLine) -> bool:
        """Return whether a line is in a region that may still run on all devices."""
        return any(
            step.path == line.path
            and step.region.first <= line.number <= step.region.last
            and not step.is_refused
            for step in self._steps.values()
        )

    def obstacle_at(self, line: UserLine) -> str | None:
        """Return what keeps the step that ends at a line from all devices, or None."""
        refused = [
            step
            for step in self._steps.values()
            if step.path == line.path and step.region.first <= line.number <= step.region.last
        ]
        for step in refused:
            if step.is_refused and step.changed:
                return step.changed
        found = [one for one in self._obstacles.get(line.path, ()) if one.line <= line.number]
        if not found:
            return None
        return f"line {found[-1].line} prevents more: {found[-1].reason}"

    def reasons(self) -> list[str]:
        """Return what keeps regions, and statements, from all devices."""
        refused = [step.changed for step in self._steps.values() if step.changed]
        return refused + [one.reason for some in self._obstacles.values() for one in some]

    def __call__(self, number: int, body: Body, read: Callable[[], tuple[Any, ...]]) -> Any:
        """Run a region on all devices; return its results, or None to run it as it is written.

        Args:
            number: The number of the region.
            body: The region as a function of its parameters.
            read: Returns the values of the parameters; raises NameError if one has none.
        """
        step = self._steps[number]
        if step.is_refused or not self._may_run() or not self._lock.acquire(blocking=False):
            return None
        try:
            try:
                values = read()
            except NameError:
                return None
            _check_shown(step.region, values)
            return self._run(step, body, values[: len(step.region.parameters)])
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
        observed = Observed(step.path, step.region.deferred)
        try:
            with observed:
                yield
            try:
                self._was_observed(step, asked, observed)
            except CannotHoist as reason:
                self._refuse(step, str(reason), observed)
        finally:
            self._lock.release()

    def _may_run(self) -> bool:
        return (
            tf.executing_eagerly()
            and os.getpid() == self._process
            and not _tf_private.tape_is_recording()
            and not tf.config.functions_run_eagerly()
            and self._is_outside()
        )

    def _run(self, step: _Step, body: Body, values: tuple[Any, ...]) -> Any:
        tensors: list[Any] = []
        structures = [take_apart(value, tensors) for value in values]
        waiting = [] if step.pending is None else [step.pending]
        for variant in (*step.variants, *waiting):
            if variant.reads.hold_for(structures):
                return self._run_variant(step, variant, body, values, tensors)
        step.num_observed += 1
        if step.num_observed > _MOST_VARIANTS:
            raise CannotHoist(f"{self._what_changes(step, structures)} changes in every step")
        _check_arrays(step.region, values)
        step.to_observe = _Asked(
            body=body, values=values, structures=structures, shapes=_shapes(tensors), variant=None
        )
        return None

    def _was_observed(self, step: _Step, asked: _Asked, observed: Observed) -> None:
        """Keep what a step that ran as it is written has read.

        Raises:
            CannotHoist: If that cannot be known, or the step does more than compute.
        """
        variant = asked.variant
        if variant is not None:
            observed.code = {**variant.reads.code, **observed.code}
        reads = self._reads(step, observed, asked.body, asked.values, asked.structures)
        if variant is None:
            variant = step.pending = _Variant(reads=reads)
            variant.function = _function(step, variant, asked.body)
        variant.reads = reads
        variant.observed.add(asked.shapes)

    def _what_changes(self, step: _Step, structures: Sequence[Any]) -> str:
        before = [*step.variants, *([step.pending] if step.pending is not None else [])]
        if not before:
            return "what it reads"
        reads = before[-1].reads
        pairs = zip(step.region.parameters, reads.structures, structures, strict=True)
        for name, before, now in pairs:
            if before != now:
                return name
        return reads.changed() or "what it reads"

    def _reads(
        self,
        step: _Step,
        observed: Observed,
        body: Body,
        values: tuple[Any, ...],
        structures: list[Any],
    ) -> _Reads:
        """Return what a step reads, after it ran as it is written.

        Raises:
            CannotHoist: If that cannot be known, or the step does more than compute.
        """
        if observed.problem is not None:
            raise CannotHoist(observed.problem[2])
        code = {body.__code__: body.__globals__, **observed.code}
        names = {name for one in code for name in attributes_read(one)}
        roots = [
            (name, value)
            for name, value, structure in zip(
                step.region.parameters, values, structures, strict=True
            )
            for name, value in _fixed_values(name, structure)
        ]
        found: list[Globals] = []
        assigned = set(step.region.results)
        for one, held in code.items():
            check_code(one, {**held, **dict(zip(step.region.parameters, values, strict=True))})
            read = list(dict.fromkeys(globals_read(one)))
            if one is not body.__code__:
                shared = sorted(assigned & {*read, *one.co_freevars})
                if shared:
                    raise CannotHoist(f"{one.co_name} reads {shared[0]}, which the step assigns")
            found.append(Globals(held, read))
            roots += [(name, held[name]) for name in read if name in held]
            roots += [(one.co_name, f) for f in functions_of(one) if one is not body.__code__]
        guards = Guards(roots, names, every=bool(_BY_NAME & {n for g in found for n in g.names}))
        _check_losses(guards, self._losses, step, code)
        return _Reads(
            structures=structures, guards=guards, globals=found, code=code, settings=_settings()
        )

    def _run_variant(
        self,
        step: _Step,
        variant: _Variant,
        body: Body,
        values: tuple[Any, ...],
        tensors: list[Any],
    ) -> Any:
        shapes = _shapes(tensors)
        variant.may_trace = variant.needs_trace = False
        try:
            if shapes in variant.verified or len(variant.verified) >= _NUM_VERIFIED_SHAPES:
                return self._call(variant, values, tensors)
        except Exception:
            if not variant.needs_trace:
                raise
        variant.may_trace = shapes in variant.observed
        results = self._verify(step, variant, body, values, tensors)
        if variant.needs_trace and not variant.may_trace:
            step.to_observe = _Asked(
                body=body,
                values=values,
                structures=variant.reads.structures,
                shapes=shapes,
                variant=variant,
            )
        elif results is not None and not step.is_refused:
            variant.verified.add(shapes)
            if variant not in step.variants:
                step.variants.insert(0, variant)
                step.pending = None
            self._note(step)
        return results

    def _call(self, variant: _Variant, values: tuple[Any, ...], tensors: Sequence[Any]) -> Any:
        flat = [_as_tensor(one, narrows=variant.narrows) for one in tensors]
        results = self._strategy.run(variant.function, args=tuple(flat))
        return tuple(put_together(one, results, values) for one in variant.results)

    def _verify(
        self,
        step: _Step,
        variant: _Variant,
        body: Body,
        values: tuple[Any, ...],
        tensors: Sequence[Any],
    ) -> Any:
        """Run a step on all devices and as it is written, and return the latter's results."""
        step.num_attempts += 1
        state, put_back_seeds = State(self._others), keep_operation_seeds()

        def undo() -> None:
            state.restore()
            variant.reads.restore()
            put_back_seeds()

        try:
            actual = self._call(variant, values, tensors)
            after = state.now()
            changed = variant.reads.changed()
        except Exception as error:
            undo()
            is_wide = any(isinstance(t, np.ndarray) and t.dtype == np.float64 for t in tensors)
            if is_wide and variant.may_trace and not variant.narrows and variant.problem is None:
                # Eagerly, TensorFlow makes float32 of such arrays beside tensors of float32.
                variant.narrows = True
                return self._verify(step, variant, body, values, tensors)
            return self._failed(step, variant, error)
        except BaseException:
            undo()
            raise
        undo()
        if changed is not None:
            raise CannotHoist(f"it changes {changed}")
        try:
            with Observed() as observed:
                expected = body(*values)
        except BaseException:
            # As written, it fails again, at its own line.
            undo()
            return None
        self._observe_again(step, variant, observed, body, values)
        if step.is_refused:
            return expected
        truth = state.now()
        found = _differences(expected, actual, truth, after)
        if not is_rounding(found) and not is_rounding(
            found, self._disturbed(state, body, values, expected, truth, undo)
        ):
            self._refuse(step, "as a function it computes other values than as written")
        return expected

    def _observe_again(
        self,
        step: _Step,
        variant: _Variant,
        observed: Observed,
        body: Body,
        values: tuple[Any, ...],
    ) -> None:
        """Take note of what a run as written does that earlier ones did not."""
        changed = variant.reads.changed()
        observed.code = {**variant.reads.code, **observed.code}
        try:
            if changed is not None:
                raise CannotHoist(f"it changes {changed}")
            if observed.problem is not None or len(observed.code) > len(variant.reads.code):
                structures = variant.reads.structures
                variant.reads = self._reads(step, observed, body, values, structures)
        except CannotHoist as reason:
            self._refuse(step, str(reason), observed)

    @staticmethod
    def _disturbed(
        state: State,
        body: Body,
        values: tuple[Any, ...],
        expected: Any,
        truth: list[np.ndarray],
        undo: Callable[[], None],
    ) -> list[float] | None:
        """Return how much rounding changes the results of a step; its effects are undone."""
        put_back_seeds = keep_operation_seeds()
        state.disturb()
        try:
            results = body(*values)
            return _differences(expected, results, truth, state.now())
        finally:
            undo()
            state.assign(truth)
            put_back_seeds()

    def _failed(self, step: _Step, variant: _Variant, error: Exception) -> None:
        if variant.problem is not None:
            raise variant.problem
        if variant.needs_trace and not variant.may_trace:
            return None
        if isinstance(error, ValueError) and "create" in str(error) and "variable" in str(error):
            if step.num_attempts < _MOST_ATTEMPTS:
                step.num_observed -= 1
                step.pending = None
                return None
        text = next(reversed(str(error).strip().splitlines()), "")
        raise CannotHoist(f"it cannot be traced ({type(error).__name__}: {text.strip()[:120]})")

    def _note(self, step: _Step) -> None:
        if step.is_noted:
            return
        step.is_noted = True
        devices = ", ".join(self._strategy.plan.device_names)
        region = step.region
        self._notes.add(f"lines {region.first} to {region.last} run on {devices}", step.line)

    def _refuse(self, step: _Step, reason: str, observed: Observed | None = None) -> None:
        step.is_refused = True
        step.variants.clear()
        step.pending = None
        line = step.region.first
        if observed is not None and observed.problem is not None and observed.problem[1]:
            path, number, _ = observed.problem
            name = (
                f"line {number}" if path == step.path else str(UserLine(path=path, number=number))
            )
            step.changed = f"{name} prevents more: {reason}"
        else:
            step.changed = f"line {line} prevents more: {reason}"


def _function(step: _Step, variant: _Variant, body: Body) -> Any:
    """Return the region as a traced function of its flat tensors."""
    structures = variant.reads.structures

    def run(*tensors: Any) -> list[Any]:
        variant.needs_trace = True
        if not variant.may_trace:
            raise _NotObserved
        variant.num_traces += 1
        try:
            if variant.num_traces > 2 * _MOST_TRACES:
                raise CannotHoist("it is traced anew for every size of a batch")
            given = [put_together(one, tensors) for one in structures]
            with _tf_private.symbolic_lengths():
                results = body(*given)
            apart, flat = results_apart(results, given, variant.reads.guards.known)
            for structure, value in zip(structures, given, strict=True):
                if isinstance(structure, Nest) and not _is_unchanged(structure, value, tensors):
                    raise CannotHoist("it changes a list or dictionary that it is given")
            _check_results_shown(step.region, apart)
            check_operations(tf.compat.v1.get_default_graph())
        except CannotHoist as problem:
            variant.problem = problem
            raise
        if variant.results is not None and variant.results != apart:
            variant.problem = CannotHoist("its results depend on the size of the batch")
            raise variant.problem
        variant.results = apart
        return flat

    run.__name__ = f"lines_{step.region.first}_to_{step.region.last}"
    return tf.function(tf.autograph.experimental.do_not_convert(run), autograph=False)


def _shapes(tensors: Sequence[Any]) -> Any:
    return tuple((tuple(one.shape), one.dtype) for one in tensors)


def _settings() -> tuple[Any, ...]:
    """Return the settings of Keras that layers read when they are called."""
    config = keras.config
    return config.floatx(), config.epsilon(), config.image_data_format()


def _check_losses(
    guards: Guards, reads: Sequence[tuple[str, int]], step: _Step, code: Iterable[CodeType]
) -> None:
    """Check that losses that layers have added are read within the step alone.

    They are tensors that the layers keep until their next call.
    """
    if not guards.has_added_losses:
        return
    spans = [(step.path, step.region.first, step.region.last)]
    for one in code:
        last = max((line or 0 for *_, line in one.co_lines()), default=0)
        spans.append((one.co_filename, one.co_firstlineno, last))
    for path, line in reads:
        if not any(path == file and first <= line <= last for file, first, last in spans):
            raise CannotHoist(f"its layers add losses, which line {line} reads later")


def _is_unchanged(structure: Any, value: Any, tensors: Sequence[Any]) -> bool:
    if isinstance(structure, Nest):
        parts = list(value.values()) if isinstance(value, dict) else list(value)
        keys = tuple(value) if isinstance(value, dict) else None
        return (
            keys == structure.keys
            and len(parts) == len(structure.parts)
            and all(
                _is_unchanged(one, part, tensors)
                for one, part in zip(structure.parts, parts, strict=True)
            )
        )
    if isinstance(structure, Fixed):
        return same(structure.value, value)
    expected = put_together(structure, tensors)
    return value is expected or not isinstance(value, tf.Tensor)


def _fixed_values(name: str, structure: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(structure, Fixed):
        yield name, structure.value
    elif isinstance(structure, Nest):
        for part in structure.parts:
            yield from _fixed_values(name, part)


def _check_shown(region: Region, values: Sequence[Any]) -> None:
    """Check that what is shown behind a step is not what the step changes."""
    if not region.shown:
        return
    for name, value in zip((*region.parameters, *region.outside_shown), values, strict=True):
        if name not in region.shown or isinstance(value, _CONSTANT):
            continue
        raise CannotHoist(f"it shows {name}, a {type(value).__name__}, which may change")


def _check_results_shown(region: Region, results: Sequence[Any]) -> None:
    for name, result in zip(region.results, results, strict=False):
        if name in region.shown and not isinstance(result, Leaf | Number | Given):
            raise CannotHoist(f"it shows {name} before it may change")


def _as_tensor(value: Any, *, narrows: bool) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if narrows and value.dtype == np.float64:
        value = value.astype(np.float32)
    return tf.convert_to_tensor(np.asarray(value))


def _check_arrays(region: Region, values: Sequence[Any]) -> None:
    """Check that arrays are used only in ways in which NumPy and TensorFlow agree.

    NumPy computes small integers in other types than TensorFlow.
    """
    for name, value in zip(region.parameters, values, strict=True):
        is_array = isinstance(value, np.ndarray) and name in region.in_arithmetic
        if is_array and value.dtype not in (np.float32, np.float64, np.int32, np.int64, np.bool_):
            raise CannotHoist(f"it computes with {name}, an array of {value.dtype} of NumPy")


def _differences(
    expected: Any, actual: Any, after_expected: Sequence[Any], after_actual: Sequence[Any]
) -> list[float]:
    left, right = _flat(expected), _flat(actual)
    if len(left) != len(right) or any(
        not (same(one, other) or (tf.is_tensor(one) and tf.is_tensor(other)))
        for one, other in zip(left, right, strict=True)
    ):
        return [float("inf")]
    tensors = [(a, b) for a, b in zip(left, right, strict=True) if tf.is_tensor(a) and a is not b]
    return [
        *differences(numbers_of([a for a, _ in tensors]), numbers_of([b for _, b in tensors])),
        *differences(after_expected, after_actual),
    ]


def _flat(values: Any) -> list[Any]:
    return tf.nest.flatten(values, expand_composites=True)
