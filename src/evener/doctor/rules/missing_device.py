"""DOC-107: a device is named that does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

from evener.analysis import Call
from evener.doctor.finding import Severity
from evener.doctor.queries.branches import conditions
from evener.doctor.queries.device_names import named_devices
from evener.doctor.queries.gpus import asks_for_gpus, makes_logical_devices, visible_gpus
from evener.doctor.rule import Case, Violation

_INDEXED = re.compile(r"(?:device:)?(gpu|cpu):(\d+)$", re.IGNORECASE)
_NAME = re.compile(
    r"/*(job:[\w-]+/)?(replica:\d+/)?(task:\d+/)?(device:\w+:(\d+|\*)|(gpu|cpu|tpu)(:(\d+|\*))?|)\s*",
    re.IGNORECASE,
)


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    for call, name in named_devices(case.program):
        if "physical_device" in name or not name.strip():
            continue
        if not _NAME.fullmatch(name):
            yield _misspelt(call, name)
        elif not _is_guarded(case, call):
            yield from _beyond(case, call, name)


def _misspelt(call: Call, name: str) -> Violation:
    digits = re.findall(r"\d+", name)
    kind = "CPU" if "cpu" in name.lower() else "GPU"
    return Violation(
        call.location,
        f"{name!r} is no name of a device.",
        why="TensorFlow raises ValueError where it is used.",
        fix=f"write '/{kind}:{digits[-1] if digits else 0}'.",
        severity=Severity.ERROR,
    )


def _beyond(case: Case, call: Call, name: str) -> Iterator[Violation]:
    """Yield a number of a device that is too large for this machine."""
    match = _INDEXED.search(name.strip())
    if (
        match is None
        or re.search(r"job:(?!localhost)", name)
        or makes_logical_devices(case.program)
    ):
        return
    kind, index = match.group(1).upper(), int(match.group(2))
    there = visible_gpus(case) if kind == "GPU" else 1
    around = case.surroundings
    # An assumed number of GPUs does not show that the program names too many.
    is_unknown = not around.gpus or (around.is_assumed and there == len(around.gpus))
    if there is None or index < there or (kind == "GPU" and is_unknown):
        return
    count = f"{there} {kind}" + ("s" if there != 1 else "")
    names = ", ".join(f"/{kind}:{number}" for number in range(there))
    yield Violation(
        call.location,
        f"{name!r} does not exist: the program sees {count}.",
        why="With soft placement, TensorFlow runs the operations of a device that does not exist "
        "on another one, without a warning."
        + (" All CPUs of a machine are one device." if kind == "CPU" else ""),
        fix=f"name one of {names}." if there else "show the program a GPU, or leave the name out.",
        evidence=(call.location.text, f"{count} visible"),
    )


def _is_guarded(case: Case, call: Call) -> bool:
    tests = conditions(case.program, call.module, call.node)
    return any(asks_for_gpus(case.program, test, call.module) for test in tests)
