"""DOC-106: memory growth is set on some of the GPUs only, or beside a limit."""

from __future__ import annotations

from collections.abc import Iterator

from evener.analysis import Call, Location, Program
from evener.doctor.queries.gpus import lists_gpus, makes_logical_devices, visible_gpus
from evener.doctor.queries.guards import is_guarded
from evener.doctor.rule import Case, Violation

_MESSAGE = "Memory growth cannot differ between GPU devices"


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    calls = list(program.calls("tf.config.set_memory_growth"))
    indices = [_index(program, call) for call in calls]
    visible = visible_gpus(case)
    if makes_logical_devices(program):
        # Then TensorFlow does not look at growth.
        yield from _behind_limits(program, calls)
        return
    if not calls or None in indices or visible is None or len(set(indices)) >= visible:
        return
    lines = tuple(call.location.text for call in calls)
    yield _violation(calls[0].location, (*lines, f"{visible} GPUs are visible"))


def _behind_limits(program: Program, calls: list[Call]) -> Iterator[Violation]:
    """Yield settings of growth for a GPU that has been cut into logical devices before."""
    limits = list(program.calls("tf.config.set_logical_device_configuration"))
    for call in calls:
        for limit in limits:
            index = _index(program, call)
            is_same = index is None or index == _index(program, limit)
            if not is_same or not program.order.is_before(limit.node, call.node):
                continue
            if is_guarded(program, call.module, call.node):
                continue
            yield Violation(
                call.location,
                "memory growth is set on a GPU that has a memory limit.",
                why="TensorFlow stops here: ValueError: Cannot set memory growth on device when "
                "virtual devices configured.",
                fix="choose one of them: the limit, or growth.",
                evidence=(call.location.text, limit.location.text),
            )
            break


def _index(program: Program, call: Call) -> int | None:
    """Return the one GPU that a call names, or None: in a loop it may be all of them."""
    given = call.argument(0, "device")
    if given is None or not lists_gpus(program, call.module, given):
        return None
    values = program.origins(call.module, given)
    indices = {value.steps[-1] if value.steps else None for value in values}
    index = indices.pop() if len(indices) == 1 else None
    return index if isinstance(index, int) else None


def _violation(location: Location, evidence: tuple[str, ...]) -> Violation:
    return Violation(
        location,
        "memory growth is set on some of the GPUs only.",
        why="It must be the same on all visible GPUs: where TensorFlow starts its devices it "
        f"raises ValueError: {_MESSAGE}.",
        fix="for gpu in tf.config.list_physical_devices('GPU'): "
        "tf.config.experimental.set_memory_growth(gpu, True)",
        evidence=evidence,
    )
