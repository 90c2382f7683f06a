"""DOC-307: BatchNormalization takes its moments from a few samples per device."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Call, Program
from evener.doctor.questions.batch_sizes import batch_sizes
from evener.doctor.questions.strategies import is_only_evener, spreads, the_number_of_replicas
from evener.doctor.rule import Case, Family, Rule

# Up to this many samples, moments of one device are a poor guess of the batch's.
_FEW = 7


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    if not spreads(program) or is_only_evener(program):
        return
    smallest = _smallest(case, the_number_of_replicas(case))
    if smallest is None:
        return
    samples, evidence = smallest
    if samples > _FEW:
        return
    for call in program.calls("keras.layers.BatchNormalization"):
        if _is_synchronized(program, call) or _is_frozen(program, call):
            continue
        yield RULE.finding(
            call.place,
            f"this BatchNormalization takes its mean and variance from {samples} samples.",
            why="Each device normalizes by the samples of its own part of the batch. With so few "
            "the moments are noise: training differs from one device, and the moving averages "
            "that are used after training fit neither.",
            fix="keras.layers.BatchNormalization(synchronized=True), which takes the moments over "
            "all devices; or a larger batch.",
            evidence=(call.place.text, evidence),
        )


def _smallest(case: Case, replicas: int | None) -> tuple[int, str] | None:
    """Return the fewest training samples that a device is given, and where that is said."""
    steps = case.seen.steps if case.seen is not None else None
    if steps is not None and steps.batch_size and steps.num_replicas > 1:
        each = steps.batch_size // steps.num_replicas
        return each, f"seen: a batch of {steps.batch_size} on {steps.num_replicas} replicas"
    found: list[tuple[int, str]] = []
    for size in batch_sizes(case.program):
        each = size.for_each
        if size.size is None or each is None or (each.power and (replicas or 1) < 2):
            continue
        samples = each.at(replicas)
        if samples is not None:
            over = f" on {replicas} devices" if each.power else ""
            found.append((max(int(samples), 1), f"{size.place.text}: {size.size.value:g}{over}"))
    # A program with several is judged by its largest.
    return max(found, key=lambda one: one[0], default=None)


def _is_synchronized(program: Program, call: Call) -> bool:
    given = call.argument(None, "synchronized")
    return given is not None and program.constant(call.module, given) is not False


def _is_frozen(program: Program, call: Call) -> bool:
    given = call.argument(None, "trainable")
    if given is not None and program.constant(call.module, given) is False:
        return True
    outer = call.module.parents.get(call.node)
    if isinstance(outer, ast.Call) and outer.func is call.node:
        training = next((k.value for k in outer.keywords if k.arg == "training"), None)
        return isinstance(training, ast.Constant) and training.value is False
    return False


RULE = Rule(
    code="DOC-307",
    family=Family.NUMBERS,
    title="BatchNormalization of a few samples per device",
    severity=Severity.WARNING,
    look=_look,
)
