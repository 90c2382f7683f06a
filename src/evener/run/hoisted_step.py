"""A hoisted step: what it reads, its traces, and which of them a call takes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType, ModuleType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener._tf_private.graphs import operation_definition
from evener._tf_private.random_numbers import (
    drawing_by,
    next_seeds,
    operation_seeds,
    set_operation_seeds,
)
from evener._tf_private.tensors import Printed, kept_prints, symbolic_constants, symbolic_lengths
from evener.run.hoisted_guards import Guards, NamedValues, Observed, names_read
from evener.run.hoisted_values import (
    LARGEST,
    PLAIN,
    CannotHoist,
    Condition,
    Fixed,
    Given,
    Leaf,
    Nest,
    PythonOperation,
    Scalar,
    SymbolicNumber,
    TraceScope,
    UsedByPython,
    can_be_argument,
    parts_of,
    put_together,
    results_apart,
    same,
    take_apart,
)
from evener.run.regions import HOOK, Region
from evener.run.script import UserLine
from evener.strategy import Strategy

# Functions that name an attribute by a value.
_BY_NAME = {"getattr", "vars", "hasattr"}
# What a step cannot change. It changes no list of Python, or it is not hoisted. A module is there
# for its name alone: `tf.print`.
_CONSTANT = (*PLAIN, np.generic, np.ndarray, tf.Tensor, list, range, ModuleType)


Body = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepCall:
    body: Body  # The region as a function
    values: tuple[Any, ...]  # Its arguments
    structures: list[Any]  # Their structures
    tensors: list[Any]  # The flat tensors and arrays in them

    @classmethod
    def of(cls, body: Body, values: tuple[Any, ...]) -> StepCall:
        tensors: list[Any] = []
        structures = [take_apart(value, tensors) for value in values]
        return cls(body=body, values=values, structures=structures, tensors=tensors)

    def with_numbers(self, places: Iterable[int]) -> StepCall:
        """Return a call in which numbers of Python among the arguments are tensors."""
        structures, tensors = list(self.structures), list(self.tensors)
        for place in sorted(places):
            value = self.values[place]
            if can_be_argument(value):
                structures[place] = Scalar(len(tensors), type(value))
                tensors.append(tf.constant(value, tf.float64))
        return replace(self, structures=structures, tensors=tensors)

    def numbers_unlike(self, structures: Sequence[Any]) -> set[int]:
        """Return which arguments are numbers that another call had other values of."""
        return {
            place
            for place, (mine, its) in enumerate(zip(self.structures, structures, strict=True))
            if isinstance(mine, Fixed) and can_be_argument(mine.value)
            if isinstance(its, Scalar | Fixed) and its.kind is mine.kind and mine != its
        }

    @property
    def shapes(self) -> Any:
        return tuple((tuple(tensor.shape), tensor.dtype) for tensor in self.tensors)

    def run(self) -> tuple[Any, ...]:
        arrays = [tensor for tensor in self.tensors if isinstance(tensor, np.ndarray)]
        before = [array.tobytes() for array in arrays]
        results = self.body(*self.values)
        if any(array.tobytes() != old for array, old in zip(arrays, before, strict=True)):
            raise AsWritten("it changes an array of NumPy", results)
        return results


class AsWritten(Exception):
    """Says that a step ran as it is written, with its effects, and is not to be hoisted."""

    def __init__(self, reason: str, results: tuple[Any, ...]) -> None:
        super().__init__(reason)
        self.results = results


@dataclass(slots=True, kw_only=True, eq=False)
class Reads:
    structures: list[Any]  # The structures of its arguments
    guards: Guards  # The values that were found from there
    globals: list[NamedValues]  # The globals that its code names
    code: dict[CodeType, dict[str, Any]]  # The code that it ran, with the globals of each
    settings: Any  # Settings of Keras

    def changed(self) -> str | None:
        if self.settings != _settings():
            return "keras.config"
        found = next((names.path for names in self.globals if not names.holds()), None)
        return found or self.guards.changed()

    def restore(self) -> None:
        self.guards.restore()
        for names in self.globals:
            names.restore()


def reads_of(
    region: Region,
    path: str,
    observed: Observed,
    call: StepCall,
    lines_with_losses: Sequence[tuple[str, int]],
) -> Reads:
    if observed.problem is not None:
        raise CannotHoist(observed.problem[2])
    code = {call.body.__code__: call.body.__globals__, **observed.code}
    names = set[str]()
    roots = [
        (name, value)
        for name, structure in zip(region.parameters, call.structures, strict=True)
        for value in _fixed_values(structure)
    ]
    given = dict(zip(region.parameters, call.values, strict=True))
    found: list[NamedValues] = []
    for code_object, held in code.items():
        attributes, read = names_read(code_object, {**held, **given})
        names |= attributes
        found.append(NamedValues("", held, read))
        roots += [(name, held[name]) for name in read if name in held and name != HOOK]
        if code_object is call.body.__code__:
            continue
        name = code_object.co_name
        shared = sorted(set(region.results) & {*read, *code_object.co_freevars})
        if shared:
            raise CannotHoist(f"{name} reads {shared[0]}, which the step assigns")
        # The closures and defaults of the functions that have this code are read too.
        functions = (f for f in gc.get_referrers(code_object) if isinstance(f, FunctionType))
        roots += [(name, function) for function in functions]
    guards = Guards(roots, names, every=bool(_BY_NAME & {n for g in found for n in g.names}))
    if guards.has_added_losses:
        # They are read within the step alone.
        spans = [(path, region.first, region.last)]
        for code_object in code:
            last = max((line or 0 for *_, line in code_object.co_lines()), default=0)
            spans.append((code_object.co_filename, code_object.co_firstlineno, last))
        for file, line in lines_with_losses:
            if not any(file == where and first <= line <= last for where, first, last in spans):
                raise CannotHoist(f"its layers add losses, which line {line} reads later")
    return Reads(
        structures=call.structures, guards=guards, globals=found, code=code, settings=_settings()
    )


def _settings() -> tuple[Any, ...]:
    """Return the settings of Keras that layers read when they are called."""
    config = keras.config
    return config.floatx(), config.epsilon(), config.image_data_format()


def _fixed_values(structure: Any) -> Iterator[Any]:
    if isinstance(structure, Fixed):
        yield structure.value
    elif isinstance(structure, Nest):
        for part in structure.parts:
            yield from _fixed_values(part)


def check_shown(region: Region, values: Sequence[Any]) -> None:
    """Check that what is shown behind a step is not what the step changes."""
    for name, value in zip((*region.parameters, *region.outside_shown), values, strict=True):
        if name in region.shown and not isinstance(value, _CONSTANT):
            raise CannotHoist(f"it shows {name}, a {type(value).__name__}, which may change")


def check_arrays(region: Region, values: Sequence[Any]) -> None:
    """Check that arrays are used only in ways in which NumPy and TensorFlow agree."""
    for name, value in zip(region.parameters, values, strict=True):
        is_array = isinstance(value, np.ndarray) and name in region.in_arithmetic
        if is_array and value.dtype not in (np.float32, np.float64, np.int32, np.int64, np.bool_):
            raise CannotHoist(f"it computes with {name}, an array of {value.dtype} of NumPy")


_VARIABLES = ("ReadVariableOp", "VariableShape", "VarIsInitializedOp", "ResourceGather", "Assign")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall", "If", "While", "Case")
_HARMLESS = (
    "Assert",
    "LookupTableFindV2",
    "LookupTableSizeV2",
    "NoOp",
    "CheckNumerics",
    "RngReadAndSkip",
)
# Public operations of TensorFlow, called by the op registry stateful though they only compute.
_COMPUTING = ("CudnnRNN", "TensorList", "TensorArray", "EmptyTensorList", "Unbatch", "Stack")


def _check(kind: str, is_stateful: bool) -> None:
    if not is_stateful or kind in (*_CALLS, *_HARMLESS):
        return
    if kind.startswith((*_VARIABLES, *_COMPUTING, "ResourceScatter")):
        return
    if kind.startswith("Resource") and "Apply" in kind:
        return
    if kind == "VarHandleOp":
        raise CannotHoist("it makes variables")
    if "Random" in kind or kind in ("Multinomial", "ParameterizedTruncatedNormal"):
        raise CannotHoist(f"tf.random draws other numbers by {kind} in a function than eagerly")
    if kind == "PrintV2":
        raise CannotHoist("it prints in a loop or a function that TensorFlow has traced")
    raise CannotHoist(f"the operation {kind} does more than compute")


_MOST_TRACES = 12
OTHER_DRAWS = "it does not draw the same random numbers in each call"


class NotObserved(Exception):
    """A trace would begin for sizes that were not seen as written."""


@dataclass(slots=True, kw_only=True, eq=False)
class Variant:
    """A step for one set of values of Python."""

    reads: Reads  # The values
    function: Any = None  # The traced function of its flat tensors
    results: Any = None  # The structure of its results, once it was traced
    prints: list[tuple[str, str]] = field(default_factory=list)  # Stream and end of each `tf.print`
    problem: CannotHoist | None = None  # Exception of a trace
    # Shapes of arguments with which it ran as written
    observed: set[Any] = field(default_factory=set)
    # Shapes of arguments with which both ways were compared
    verified: set[Any] = field(default_factory=set)
    num_traces: int = 0  # Number of traces
    may_trace: bool = False  # Whether the call of now may trace it
    needs_trace: bool = False  # Whether the call of now would trace it
    narrows: bool = False  # Whether arrays of float64 become float32
    # The arguments that are numbers of Python, given to the graph as tensors
    places: frozenset[int] = frozenset()
    # Comparisons of these numbers that the traces depend on
    conditions: list[Condition] = field(default_factory=list)
    given: Sequence[Any] = ()  # The arguments of the call of now
    num_compared: int = 0  # Number of comparisons of both ways
    num_draws: int = 0  # Number of random draws without a seed of their own

    def call(self, call: StepCall, strategy: Strategy) -> tuple[tuple[Any, ...], list[Printed]]:
        """Run the step on all devices; return its results, and what it would print."""
        self.given = call.values
        flat = list(call.tensors)
        for index, value in enumerate(flat):
            if isinstance(value, np.ndarray):
                is_narrowed = self.narrows and value.dtype == np.float64
                dtype = np.float32 if is_narrowed else value.dtype
                flat[index] = tf.convert_to_tensor(np.asarray(value, dtype))
        seeds = operation_seeds()
        flat += next_seeds(self.num_draws)
        try:
            results = strategy.run(self.function, args=tuple(flat))
        except BaseException:
            set_operation_seeds(seeds)
            raise
        texts = results[len(results) - len(self.prints) :]
        pairs = zip(texts, self.prints, strict=True)
        prints = [Printed(text=text, stream=stream, end=end) for text, (stream, end) in pairs]
        return tuple(put_together(r, results, call.values) for r in self.results), prints


def traced(region: Region, variant: Variant, body: Body) -> Any:
    """Return the region as a traced function of its flat tensors."""
    structures = variant.reads.structures

    def run(*tensors: Any) -> list[Any]:
        variant.needs_trace = True
        if not variant.may_trace:
            raise NotObserved
        variant.num_traces += 1
        scope = TraceScope(given=variant.given)
        try:
            if variant.num_traces > _MOST_TRACES:
                raise CannotHoist("it is traced anew for every size of a batch")
            given: list[Any] = []
            for place, structure in enumerate(structures):
                if isinstance(structure, Scalar):
                    kind, tensor = structure.kind, tensors[structure.number]
                    bound = LARGEST if kind is int else 0
                    given.append(SymbolicNumber(scope, Given(place), kind, tensor, bound))
                else:
                    given.append(put_together(structure, tensors))
            seeds = tensors[len(tensors) - variant.num_draws - 1 :] if variant.num_draws else ()
            drawing = drawing_by(seeds)
            lengths, constants = symbolic_lengths(), symbolic_constants()
            with lengths, constants, drawing as num_draws, kept_prints() as prints:
                results = body(*given)
            if num_draws() != variant.num_draws:
                raise CannotHoist(OTHER_DRAWS)
            apart, flat = results_apart(results, given, variant.reads.guards.seen)
            if scope.problem is not None:
                raise scope.problem
            for structure, value in zip(structures, given, strict=True):
                if isinstance(structure, Nest) and not _is_unchanged(structure, value, tensors):
                    raise CannotHoist("it changes a list or dictionary that it is given")
            unchanged = (Leaf, Scalar, Given, PythonOperation)
            for name, result in zip(region.results, apart, strict=False):
                if name in region.shown and not isinstance(result, unchanged):
                    raise CannotHoist(f"it shows {name} before it may change")
            graph = tf.compat.v1.get_default_graph()
            for operation in graph.get_operations():
                _check(operation.type, operation.op_def.is_stateful)
            for function in graph.as_graph_def().library.function:
                for node in function.node_def:
                    definition = operation_definition(node.op)
                    _check(node.op, definition is not None and definition.is_stateful)
        except CannotHoist as problem:
            variant.problem = problem
            raise
        finally:
            variant.problem = scope.problem or variant.problem
        variant.conditions = list(dict.fromkeys([*variant.conditions, *scope.conditions]))
        places = [(each.stream, each.end) for each in prints]
        if variant.results is not None and (variant.results, variant.prints) != (apart, places):
            variant.problem = CannotHoist("its results depend on the size of the batch")
            raise variant.problem
        variant.results, variant.prints = apart, places
        return [*flat, *(each.text for each in prints)]

    run.__name__ = f"lines_{region.first}_to_{region.last}"
    return tf.function(tf.autograph.experimental.do_not_convert(run), autograph=False)


def _is_unchanged(structure: Any, value: Any, tensors: Sequence[Any]) -> bool:
    if isinstance(structure, Nest):
        parts = parts_of(value) or []
        keys = tuple(value) if isinstance(value, dict) else None
        if keys != structure.keys or len(parts) != len(structure.parts):
            return False
        pairs = zip(structure.parts, parts, strict=True)
        return all(_is_unchanged(inner, part, tensors) for inner, part in pairs)
    if isinstance(structure, Fixed):
        return same(structure.value, value)
    expected = put_together(structure, tensors)
    return value is expected or not isinstance(value, tf.Tensor)


@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """A region of the script: what was observed and traced of it, or why it is refused."""

    region: Region  # Lines of the step
    path: str  # File of the region
    variants: list[Variant] = field(default_factory=list)  # Traced variants, the latest first
    pending: Variant | None = None  # Variant that was observed and is not traced yet
    # Call to observe, and its variant if there is one already
    to_observe: tuple[StepCall, Variant | None] | None = None
    num_observed: int = 0  # Number of sets of values that were observed
    num_calls: int = 0  # Number of runs on all devices alone
    num_attempts: int = 0  # Number of traces in which variables were made
    # Indices of arguments that are numbers which Python itself uses; they are no arguments of a
    # graph
    for_python: frozenset[int] = frozenset()
    obstacle: str | None = None  # Reason why the step does not run on all devices
    is_noted: bool = False  # Whether a note says that it runs on all devices

    def places_of(self, call: StepCall) -> frozenset[int]:
        """Return which arguments are numbers that change: they become arguments of the graph."""
        if self.latest is None:
            return frozenset()
        changing = call.numbers_unlike(self.latest.reads.structures)
        return (self.latest.places | changing) - self.for_python

    @property
    def latest(self) -> Variant | None:
        return self.pending or (self.variants[0] if self.variants else None)

    def holds(self, line: UserLine) -> bool:
        return self.path == line.path and self.region.first <= line.number <= self.region.last

    def covers(self, line: UserLine) -> bool:
        """Return whether a line is in the region, or behind it in its block."""
        region = self.region
        return self.path == line.path and region.first <= line.number <= region.end_of_block

    def what_changes(self, call: StepCall) -> str:
        if self.latest is None:
            return "what it reads"
        reads = self.latest.reads
        structures = call.with_numbers(self.latest.places).structures
        pairs = zip(self.region.parameters, reads.structures, structures, strict=True)
        name = next((name for name, old, new in pairs if old != new), None)
        return name or reads.changed() or "what it reads"

    def forget_numbers(self, variant: Variant, problem: Exception) -> None:
        """Leave numbers to Python that cannot be arguments: each value has a trace of its own."""
        places = problem.places if isinstance(problem, UsedByPython) else variant.places
        self.for_python |= places or variant.places
        self.variants = [kept for kept in self.variants if kept is not variant]
        self.pending = None
        self.num_observed = 0
