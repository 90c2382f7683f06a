"""DOC-101: GPUs are hidden from the program."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Call, Location, Program
from evener.doctor.finding import Severity
from evener.doctor.queries.branches import is_conditional
from evener.doctor.queries.environment import settings
from evener.doctor.queries.gpus import (
    choices_of_gpus,
    chosen_by,
    hides_all,
    means_gpus,
    shown,
)
from evener.doctor.queries.strategies import strategies
from evener.doctor.queries.training import trainings, trains, updates
from evener.doctor.rule import Case, Violation
from evener.doctor.surroundings import HIDING

_WHY = "No GPU is seen, and TensorFlow goes on without a word: all work falls to the CPU."


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    if not means_gpus(program) and not (case.surroundings.gpus and trains(program)):
        return
    yield from _by_environment_here(case)
    yield from _by_visible_devices(case)
    yield from _by_environment_around(case)


def _by_environment_here(case: Case) -> Iterator[Violation]:
    for setting in settings(case.program):
        if setting.name != HIDING or setting.value is None:
            continue
        if is_conditional(case.program, setting.module, setting.node):
            continue
        if hides_all(setting.value):
            yield _hidden(case, setting.location, f"{HIDING} is set to {setting.value!r} here.")
        else:
            yield from _some(case, setting.location, setting.value)


def _some(case: Case, location: Location, value: str) -> Iterator[Violation]:
    """Yield a strategy for several GPUs that sees one; a hint, as it may be intended."""
    num_gpus = len(case.surroundings.gpus)
    left = shown(value, num_gpus)
    spread = [made for made in strategies(case.program) if made.name == "MirroredStrategy"]
    if left == 1 < num_gpus and spread:
        yield Violation(
            location,
            f"{HIDING}={value!r} leaves {left} of {num_gpus} GPUs to MirroredStrategy.",
            why="A strategy over one GPU has one replica; the other GPUs idle.",
            fix=f"name more GPUs in {HIDING}, or leave it unset.",
            severity=Severity.HINT,
            evidence=(location.text, spread[0].call.location.text),
        )


def _by_visible_devices(case: Case) -> Iterator[Violation]:
    program = case.program
    for call in choices_of_gpus(program):
        num_gpus = len(case.surroundings.gpus)
        left = chosen_by(program, call, num_gpus)
        if left == 0 and not _hides_what_is_not_there(case, call):
            yield _hidden(case, call.location, "set_visible_devices([], 'GPU') hides all GPUs.")
        elif left is not None and 0 < left < num_gpus:
            yield Violation(
                call.location,
                f"set_visible_devices leaves {left} of {num_gpus} GPUs to the program.",
                why="TensorFlow does not see the other GPUs, and no strategy can use them.",
                fix="take that line out; or start one program for each GPU, with "
                f"{HIDING} in its environment.",
                evidence=(call.location.text, case.surroundings.gpus_told),
            )


def _hides_what_is_not_there(case: Case, call: Call) -> bool:
    """Return whether the list is empty only because there are no GPUs."""
    given = call.argument(0, "devices")
    assert given is not None
    values = case.program.origins(call.module, given)
    return not all(isinstance(value.node, ast.List) and not value.node.elts for value in values)


def _by_environment_around(case: Case) -> Iterator[Violation]:
    value = case.surroundings.environment.get(HIDING)
    if value is None or not hides_all(value) or not case.surroundings.gpus:
        return
    if any(setting.name == HIDING for setting in settings(case.program)):
        return
    first = _first_use(case.program)
    if first is not None:
        what = f"the environment hides all GPUs: {HIDING}={value!r}."
        yield _hidden(case, first.location, what, f"{HIDING}={value}")


def _first_use(program: Program) -> Call | None:
    """Return the line that wants GPUs first."""
    made = [strategy.call for strategy in strategies(program)]
    named = list(program.calls("tf.device"))
    listed = list(program.calls("tf.config.list_*_devices", "tf.config.set_memory_growth"))
    trained = [*trainings(program), *(update.call for update in updates(program))]
    found = [*made, *named, *listed] or trained
    return min(found, key=lambda call: program.order.of(call.node) or 1 << 60, default=None)


def _hidden(case: Case, location: Location, what: str, *evidence: str) -> Violation:
    gpus = case.surroundings.gpus
    there = (case.surroundings.gpus_told,) if gpus else ()
    return Violation(
        location,
        what,
        why=_WHY,
        fix="take that line out, or name the GPUs to use, such as "
        f"{HIDING}={','.join(str(i) for i in range(len(gpus) or 2))}."
        if not evidence
        else f"unset {HIDING} where the program is started.",
        evidence=(*([location.text] if location.text else []), *evidence, *there),
        severity=Severity.ERROR if gpus and means_gpus(case.program) else None,
    )
