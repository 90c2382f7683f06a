"""Reducing a trial with a fault: what can be left out while the fault stays is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from exactness.fuzz.check import Fault, Trial, check
from exactness.fuzz.program import ARGUMENTS, VARIABLES

_MOST_CHECKS = 120


def reduce_trial(
    trial: Trial, fault: Fault, *, tell: Callable[[], None] = lambda: None
) -> tuple[Trial, Fault]:
    """Return the smallest trial found that has a fault of the same kind."""
    left = _MOST_CHECKS
    seen = {trial}
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(trial, fault):
            if candidate in seen:
                continue
            if left == 0:
                return trial, fault
            seen.add(candidate)
            left -= 1
            tell()
            found = check(candidate).fault
            if found is not None and found.kind == fault.kind:
                trial, fault, is_smaller = candidate, found, True
                break
    return trial, fault


def _smaller(trial: Trial, fault: Fault) -> Iterator[Trial]:
    """Yield trials that are smaller in one respect, those with most left out first."""
    program = trial.program
    if len(trial.sizes) > 1:
        yield replace(trial, sizes=(fault.size,))
    if program.losses:
        yield replace(trial, program=replace(program, losses=()).trimmed())
    if fault.result in program.outputs and len(program.outputs) > 1:
        yield replace(trial, program=replace(program, outputs=(fault.result,)).trimmed())
    if trial.whole:
        yield replace(trial, whole="")
    if program.by_xla:
        yield replace(trial, program=replace(program, by_xla=False))
    if program.dtype != "float64":
        yield replace(trial, program=replace(program, dtype="float64"))
    if program.is_static:
        yield replace(trial, program=replace(program, is_static=False))
    for names in ("losses", "outputs"):
        values = getattr(program, names)
        for name in values if len(values) > 1 else ():
            fewer = tuple(value for value in values if value != name)
            yield replace(trial, program=replace(program, **{names: fewer}).trimmed())
    for index in reversed(range(len(program.instructions))):
        read = program.instructions[index].uses()
        earlier = [
            instruction.name
            for instruction in program.instructions[:index]
            if instruction.name in read
        ]
        for instead in (*earlier, *(n for n in (*ARGUMENTS, *VARIABLES, "B") if n in read)):
            yield replace(trial, program=program.without(index, instead))
        for instead in ("n", "B", "y", "s", "x"):
            yield replace(trial, program=program.without(index, instead))
    if len(trial.sizes) > 1:
        for size in trial.sizes:
            yield replace(trial, sizes=tuple(kept for kept in trial.sizes if kept != size))
    if trial.plan != "2":
        yield replace(trial, plan="2")
