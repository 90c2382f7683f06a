"""A hoisted step, traced for one set of values of Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from evener._tf_private.random_numbers import (
    drawing_by,
    next_seeds,
    operation_seeds,
    set_operation_seeds,
)
from evener._tf_private.tensors import symbolic_lengths
from evener.analysis.hoisting import Region
from evener.run.hoisting.expressions import Condition, Given, Operation, hold
from evener.run.hoisting.graph import check_operations
from evener.run.hoisting.reads import Body, Call, Reads
from evener.run.hoisting.symbolic import Scope, expression_of, symbolic
from evener.run.hoisting.values import (
    CannotHoist,
    Fixed,
    Leaf,
    Nest,
    Number,
    Scalar,
    put_together,
    results_apart,
    same,
)
from evener.strategy import Strategy

_MOST_TRACES = 12
OTHER_DRAWS = "it does not draw the same random numbers in each call"


class NotObserved(Exception):
    """A trace would begin for sizes that were not seen as written."""


@dataclass(slots=True, kw_only=True, eq=False)
class Variant:
    """A step for one set of values of Python.

    Args:
        reads: The values.
        function: The traced function of its flat tensors.
        results: The structure of its results, once it was traced.
        problem: Exception of a trace.
        observed: Shapes of arguments with which it ran as written.
        verified: Shapes of arguments with which both ways were compared.
        num_traces: Number of traces.
        may_trace: Whether the call of now may trace it.
        needs_trace: Whether the call of now would trace it.
        narrows: Whether arrays of float64 become float32.
        places: The arguments that are numbers of Python, given to the graph as tensors.
        conditions: Comparisons of these numbers that the traces depend on.
        given: The arguments of the call of now.
        num_compared: Number of comparisons of both ways.
        num_draws: Number of random draws without a seed of their own.
    """

    reads: Reads
    function: Any = None
    results: Any = None
    problem: CannotHoist | None = None
    observed: set[Any] = field(default_factory=set)
    verified: set[Any] = field(default_factory=set)
    num_traces: int = 0
    may_trace: bool = False
    needs_trace: bool = False
    narrows: bool = False
    places: frozenset[int] = frozenset()
    conditions: list[Condition] = field(default_factory=list)
    given: Sequence[Any] = ()
    num_compared: int = 0
    num_draws: int = 0

    def is_for(self, call: Call) -> bool:
        """Return whether a call, with its numbers as tensors, reads the same values."""
        return self.reads.hold_for(call.structures) and hold(self.conditions, call.values)

    @property
    def was_compared_enough(self) -> bool:
        """Whether both ways were compared for two values of the numbers, if there are any."""
        return self.num_compared > 1 or not self.places

    def call(self, call: Call, strategy: Strategy) -> tuple[Any, ...]:
        """Run the step on all devices."""
        self.given = call.values
        flat = [_as_tensor(tensor, narrows=self.narrows) for tensor in call.tensors]
        seeds = operation_seeds()
        flat += next_seeds(self.num_draws)
        try:
            results = strategy.run(self.function, args=tuple(flat))
        except BaseException:
            set_operation_seeds(seeds)
            raise
        return tuple(put_together(result, results, call.values) for result in self.results)


def traced(region: Region, variant: Variant, body: Body) -> Any:
    """Return the region as a traced function of its flat tensors."""
    structures = variant.reads.structures

    def run(*tensors: Any) -> list[Any]:
        variant.needs_trace = True
        if not variant.may_trace:
            raise NotObserved
        variant.num_traces += 1
        scope = Scope(given=variant.given)
        try:
            if variant.num_traces > _MOST_TRACES:
                raise CannotHoist("it is traced anew for every size of a batch")
            given = [_given(scope, i, structure, tensors) for i, structure in enumerate(structures)]
            seeds = tensors[len(tensors) - variant.num_draws - 1 :] if variant.num_draws else ()
            drawing = drawing_by(seeds)
            with symbolic_lengths(), drawing as num_draws:
                results = body(*given)
            if num_draws() != variant.num_draws:
                raise CannotHoist(OTHER_DRAWS)
            known = variant.reads.guards.known
            apart, flat = results_apart(results, given, known, expression_of)
            if scope.problem is not None:
                raise scope.problem
            for structure, value in zip(structures, given, strict=True):
                if isinstance(structure, Nest) and not _is_unchanged(structure, value, tensors):
                    raise CannotHoist("it changes a list or dictionary that it is given")
            _check_results_shown(region, apart)
            check_operations(tf.compat.v1.get_default_graph())
        except CannotHoist as problem:
            variant.problem = problem
            raise
        finally:
            variant.problem = scope.problem or variant.problem
        variant.conditions = list(dict.fromkeys([*variant.conditions, *scope.conditions]))
        if variant.results is not None and variant.results != apart:
            variant.problem = CannotHoist("its results depend on the size of the batch")
            raise variant.problem
        variant.results = apart
        return flat

    run.__name__ = f"lines_{region.first}_to_{region.last}"
    return tf.function(tf.autograph.experimental.do_not_convert(run), autograph=False)


def _given(scope: Scope, place: int, structure: Any, tensors: Sequence[Any]) -> Any:
    if isinstance(structure, Scalar):
        return symbolic(scope, place, structure.kind, tensors[structure.number])
    return put_together(structure, tensors)


def _is_unchanged(structure: Any, value: Any, tensors: Sequence[Any]) -> bool:
    if isinstance(structure, Nest):
        parts = list(value.values()) if isinstance(value, dict) else list(value)
        keys = tuple(value) if isinstance(value, dict) else None
        return (
            keys == structure.keys
            and len(parts) == len(structure.parts)
            and all(
                _is_unchanged(inner, part, tensors)
                for inner, part in zip(structure.parts, parts, strict=True)
            )
        )
    if isinstance(structure, Fixed):
        return same(structure.value, value)
    expected = put_together(structure, tensors)
    return value is expected or not isinstance(value, tf.Tensor)


def _check_results_shown(region: Region, results: Sequence[Any]) -> None:
    for name, result in zip(region.results, results, strict=False):
        if name in region.shown and not isinstance(result, Leaf | Number | Given | Operation):
            raise CannotHoist(f"it shows {name} before it may change")


def _as_tensor(value: Any, *, narrows: bool) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if narrows and value.dtype == np.float64:
        value = value.astype(np.float32)
    return tf.convert_to_tensor(np.asarray(value))
