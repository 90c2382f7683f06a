"""DOC-107: a device is named that does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.questions.branches import conditions
from evener.doctor.questions.device_names import Named, named_devices
from evener.doctor.questions.gpus import asks_for_gpus, makes_logical_devices, visible_gpus
from evener.doctor.questions.texts import place_at
from evener.doctor.rule import Case, Family, Rule

_INDEXED = re.compile(r"(?:device:)?(gpu|cpu):(\d+)$", re.IGNORECASE)
_WHOLE = re.compile(
    r"/*(job:[\w-]+/)?(replica:\d+/)?(task:\d+/)?(device:\w+:(\d+|\*)|(gpu|cpu|tpu)(:(\d+|\*))?|)\s*",
    re.IGNORECASE,
)


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    lines = set[int]()
    for named in named_devices(program):
        text = named.text
        if text is None or "physical_device" in text or not text.strip():
            continue
        if not _WHOLE.fullmatch(text):
            yield _misspelt(named, text)
        elif not _is_guarded(case, named):
            yield from _beyond(case, named, text, lines)
    yield from _misplaced(case, lines)


def _misspelt(named: Named, text: str) -> Finding:
    digits = re.findall(r"\d+", text)
    kind = "CPU" if "cpu" in text.lower() else "GPU"
    return RULE.finding(
        named.place,
        f"{text!r} is no name of a device.",
        why="TensorFlow raises ValueError where it is used.",
        fix=f"write '/{kind}:{digits[-1] if digits else 0}'.",
        severity=Severity.ERROR,
    )


def _beyond(case: Case, named: Named, text: str, lines: set[int]) -> Iterator[Finding]:
    """Find a number of a device that is too large for this machine."""
    match = _INDEXED.search(text.strip())
    if match is None or re.search(r"job:(?!localhost)", text):
        return
    kind, index = match.group(1).upper(), int(match.group(2))
    if makes_logical_devices(case.program):
        return
    there = visible_gpus(case) if kind == "GPU" else 1
    around = case.surroundings
    # Whether the program names too many GPUs, an assumed number cannot tell.
    is_unknown = not around.gpus or (around.is_assumed and there == len(around.gpus))
    if there is None or index < there or (kind == "GPU" and is_unknown):
        return
    lines.add(named.place.line)
    count = f"{there} {kind}" + ("s" if there != 1 else "")
    yield RULE.finding(
        named.place,
        f"{text!r} does not exist: the program sees {count}.",
        why="TensorFlow places softly: what is asked of a device that does not exist runs on "
        "another one, and nothing is said."
        + (" All CPUs of a machine are one device." if kind == "CPU" else ""),
        fix=f"name one of {', '.join(f'/{kind}:{i}' for i in range(there))}"
        if there
        else "show the program a GPU, or leave the name out",
        evidence=(named.place.text, f"{count} visible"),
    )


def _is_guarded(case: Case, named: Named) -> bool:
    program, call = case.program, named.call
    return any(
        asks_for_gpus(program, test, call.module)
        for test in conditions(program, call.module, call.node)
    )


def _misplaced(case: Case, lines: set[int]) -> Iterator[Finding]:
    """Find what a run has shown to be elsewhere, since the device is not there."""
    if case.seen is None:
        return
    there = {device.upper().rpartition("DEVICE:")[2] for device in case.seen.devices}
    said = set[tuple[str, int]]()
    for one in case.seen.misplaced:
        asked = one.asked.upper().rpartition("DEVICE:")[2].lstrip("/")
        if one.where is None or asked in there or one.where.line in lines:
            continue
        if (one.where.file, one.where.line) in said:
            continue
        said.add((one.where.file, one.where.line))
        yield RULE.finding(
            place_at(case.program, one.where.file, one.where.line),
            f"{one.asked} does not exist: {one.type} ran on {one.used}.",
            why="TensorFlow places softly: what is asked of a device that does not exist runs "
            "on another one, and nothing is said.",
            fix=f"name one of {', '.join(case.seen.devices)}.",
            evidence=(f"{one.name}: asked {one.asked}, used {one.used}: {one.reason}",),
        )


RULE = Rule(
    code="DOC-107",
    family=Family.DEVICES,
    title="a device that does not exist",
    severity=Severity.WARNING,
    look=_look,
)
