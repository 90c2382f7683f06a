"""DOC-307: BatchNormalization takes its moments from a few samples per device."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Call, Program
from evener.doctor.questions.batches import Batch, batches_of
from evener.doctor.questions.strategies import is_only_evener, num_replicas, spreads
from evener.doctor.rule import Case, Family, Rule

# Up to this many samples, moments of one device are a poor guess of the batch's.
_FEW = 7


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    if not spreads(program) or is_only_evener(program):
        return
    replicas = num_replicas(case)
    smallest = _smallest(case, replicas)
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
    sizes: list[tuple[int, Batch]] = []
    for batch in batches_of(case.program):
        if _is_for_testing(batch):
            continue
        if batch.is_per_replica or _is_in_pipeline_of_worker(case.program, batch):
            sizes.append((batch.size, batch))
        elif replicas is not None and replicas > 1:
            sizes.append((max(batch.size // replicas, 1), batch))
    if not sizes:
        return None
    # A program with several is judged by its largest: the small ones may be for testing.
    each, batch = max(sizes, key=lambda one: one[0])
    over = "" if batch.is_per_replica else f" on {replicas} devices"
    return each, f"{batch.call.place.text}: {batch.size}{over}"


def _is_for_testing(batch: Batch) -> bool:
    text = batch.call.place.text.split("=")[0].lower()
    return "test" in text or "val" in text


def _is_in_pipeline_of_worker(program: Program, batch: Batch) -> bool:
    """Return whether a dataset is batched in ``distribute_datasets_from_function``."""
    function = program.around.function(batch.call.module, batch.call.node)
    return function is not None and any(
        isinstance(one, ast.arg) and "context" in one.arg for one in ast.walk(function)
    )


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
