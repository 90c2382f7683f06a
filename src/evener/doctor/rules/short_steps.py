"""DOC-404: steps so small that starting them costs more than computing them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Call, Module, Program, argument
from evener.doctor.finding import Severity
from evener.doctor.queries.batch_sizes import sizes_of_fit
from evener.doctor.queries.numbers import number
from evener.doctor.queries.source_text import shown
from evener.doctor.queries.strategies import is_only_evener, spreads, strategies
from evener.doctor.queries.training import compiles, fits
from evener.doctor.rule import Case, Violation

# Of Dense layers of at most this width, and batches of at most this size, a step takes
# less time than its start from Python.
_WIDEST = 64
_LARGEST_BATCH = 32
_SHORT_SECONDS = 0.002


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    # Under strategies of TensorFlow, fit fails with steps_per_execution above 1.
    if spreads(program) and strategies(program) and not is_only_evener(program):
        return
    for call in compiles(program):
        if call.argument(None, "steps_per_execution") is not None or _is_eager(program, call):
            continue
        fit = _fit_of(program, call)
        if fit is None:
            continue
        size = _batch_size(program, fit)
        measured = _measured(case)
        if measured or (size is not None and _is_tiny(program, call)):
            if size is not None and size > _LARGEST_BATCH and not measured:
                continue
            small = f"batches of {size} samples" if size is not None else "its batches"
            yield Violation(
                call.location,
                f"{shown(call.owner or call.node)} is small for {small}: its steps are very short.",
                why="fit starts every step from Python, which takes about a millisecond; the "
                "devices are idle for most of that.",
                fix='compile(..., steps_per_execution="auto"), or 32, or larger batches.',
                evidence=(call.location.text, fit.location.text, *measured),
                severity=Severity.WARNING if measured else None,
            )


def _measured(case: Case) -> tuple[str, ...]:
    steps = case.observation.steps if case.observation is not None else None
    if steps is None or not 0 < steps.step_seconds < _SHORT_SECONDS:
        return ()
    return (f"seen: steps of {1000 * steps.step_seconds:.2f} ms",)


def _is_eager(program: Program, call: Call) -> bool:
    given = call.argument(None, "run_eagerly")
    return given is not None and program.constant(call.module, given) is not False


def _models(program: Program, call: Call) -> set[ast.Call]:
    if call.owner is None:
        return set()
    return {made for _, made in program.made_by(call.module, call.owner)}


def _fit_of(program: Program, call: Call) -> Call | None:
    models = _models(program, call)
    return next((fit for fit in fits(program) if models & _models(program, fit)), None)


def _batch_size(program: Program, fit: Call) -> int | None:
    """Return the one batch size of a fit, for a single replica."""
    given = [batch_size.size for batch_size in sizes_of_fit(program, fit)]
    sizes = {None if size is None else size.whole_at(1) for size in given}
    return sizes.pop() if len(sizes) == 1 else None


def _is_tiny(program: Program, call: Call) -> bool:
    """Return whether a model has only a few narrow Dense layers."""
    for module, made in program.made_by(call.module, call.owner) if call.owner is not None else ():
        if program.name_of(module, made.func) != "keras.Sequential" or not made.args:
            return False
        for value in program.origins(module, made.args[0]):
            if not isinstance(value.node, ast.List) or not _are_tiny(
                program, value.module, value.node
            ):
                return False
        return True
    return False


def _are_tiny(program: Program, module: Module, layers: ast.List) -> bool:
    dense = 0
    for layer in layers.elts:
        if not isinstance(layer, ast.Call):
            return False
        name = program.name_of(module, layer.func)
        if name == "keras.layers.Dense":
            units = number(program, module, argument(layer, 0, "units"))
            if units is None or units.value > _WIDEST:
                return False
            dense += 1
        elif name not in ("keras.Input", "keras.layers.InputLayer", "keras.layers.Dropout"):
            return False
    return 0 < dense <= 4
