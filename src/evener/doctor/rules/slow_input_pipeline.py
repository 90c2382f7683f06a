"""DOC-401: an input pipeline without prefetch or parallel map."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Call, Kind, Module, Program
from evener.doctor.finding import Severity
from evener.doctor.queries.pipelines import Pipeline, pipelines_of
from evener.doctor.queries.source_text import method_location, observed_location, shown
from evener.doctor.rule import Case, Violation

# From this part of a step on, waiting for input is worth a warning.
_MUCH = 0.25


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    waits = _waits(case)
    for pipeline in pipelines_of(program):
        serial = [call for call in pipeline.maps if _is_serial(call)]
        costly = [call for call in serial if _is_costly(program, call)]
        if pipeline.num_parallel_interleaves and not costly:
            serial = []
        severity = Severity.WARNING if costly or (waits and serial) else Severity.HINT
        for call in costly or serial[:1]:
            yield _serial_map(call, pipeline, severity, waits)
        if serial or pipeline.prefetches or pipeline.is_distributed:
            continue
        parallel_work = any(_is_costly(program, call) for call in pipeline.maps)
        if parallel_work or pipeline.reads_files or pipeline.generates:
            yield _no_prefetch(pipeline, Severity.WARNING, waits)
        elif waits:
            yield _no_prefetch(pipeline, Severity.HINT, waits)
    if waits and not any(True for _ in pipelines_of(program)):
        yield from _measured_alone(case, waits)


def _is_serial(call: Call) -> bool:
    # What stands behind ** may well be it.
    unpacked = any(keyword.arg is None for keyword in call.node.keywords)
    return not unpacked and call.argument(1, "num_parallel_calls") is None


def _is_costly(program: Program, call: Call) -> bool:
    """Return whether a map reads, decodes or computes a good deal for each element."""
    given = call.argument(0, "map_func")
    if given is None:
        return False
    waiting: list[tuple[Module, ast.AST]] = list(program.functions_of(call.module, given))
    seen: set[ast.AST] = set()
    while waiting and len(seen) < 20:
        module, function = waiting.pop()
        if function in seen:
            continue
        seen.add(function)
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            name = program.name_of(module, node.func)
            if name.startswith(("tf.io.", "tf.image.", "tf.audio.", "tf.strings.split", "cv2.")):
                return True
            if name in ("tf.py_function", "tf.numpy_function", "tf.py_func", "tf.signal.stft"):
                return True
            waiting += list(program.targets(module, node))
    return False


def _serial_map(
    call: Call, pipeline: Pipeline, severity: Severity, waits: tuple[str, ...]
) -> Violation:
    function = shown(call.node.args[0]) if call.node.args else "its function"
    also = "" if pipeline.prefetches or pipeline.is_distributed else ", and nothing is prefetched"
    location = method_location(call)
    return Violation(
        location,
        f"map({function}) works on one element at a time, on one core{also}.",
        why="Without num_parallel_calls the elements of a batch are made one after the other"
        + (", and without prefetch only while the devices wait." if also else "."),
        fix=f".map({function}, num_parallel_calls=tf.data.AUTOTUNE)"
        + (", and .prefetch(tf.data.AUTOTUNE) as the last of the pipeline." if also else "."),
        evidence=(location.text, *waits),
        severity=severity,
    )


def _no_prefetch(pipeline: Pipeline, severity: Severity, waits: tuple[str, ...]) -> Violation:
    location = method_location(pipeline.last)
    return Violation(
        location,
        "this pipeline prefetches nothing.",
        why="The next batch is only begun when the devices ask for it: they wait for the input, "
        "and the input waits for them.",
        fix="add .prefetch(tf.data.AUTOTUNE) at its end.",
        evidence=(location.text, *waits),
        severity=severity,
    )


def _waits(case: Case) -> tuple[str, ...]:
    steps = case.observation.steps if case.observation is not None else None
    if steps is None or steps.step_seconds <= 0:
        return ()
    part = steps.input_seconds / steps.step_seconds
    if part < _MUCH:
        return ()
    return (
        f"seen: {1000 * steps.input_seconds:.1f} ms of a step of {1000 * steps.step_seconds:.1f} "
        f"ms are spent waiting for input ({part:.0%})",
    )


def _measured_alone(case: Case, waits: tuple[str, ...]) -> Iterator[Violation]:
    steps = case.observation.steps if case.observation is not None else None
    if steps is None or steps.where is None or not _has_dataset(case.program):
        return
    yield Violation(
        observed_location(case.program, steps.where),
        "the devices wait for the input.",
        why="The pipeline takes longer than the step, and what is faster is not in its text.",
        fix="let map run with num_parallel_calls, cache what fits into memory, and read fewer, "
        "larger files.",
        evidence=waits,
        severity=Severity.WARNING,
    )


def _has_dataset(program: Program) -> bool:
    return any(True for _ in program.method_calls(Kind.DATASET))
