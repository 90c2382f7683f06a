"""Differences of two runs: their settings, and their figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evener.recording.reading import RecordedDiagnosis
from evener.report.page.sections import RunView, format_number
from evener.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Row of the comparison.

    Attributes:
        what: Name of the setting or the figure.
        first: Text of the first run.
        second: Text of the second run.
        change: Ratio of a figure; empty for a setting.
    """

    what: str
    first: str
    second: str
    change: str = ""


def differences(first: RunView, second: RunView) -> tuple[list[Difference], list[Difference]]:
    """Return the settings that differ, and the figures of both runs."""
    settings = [
        Difference(what=what, first=a, second=b)
        for (what, a), (_, b) in zip(_settings(first), _settings(second), strict=True)
        if a != b
    ]
    return settings, list(_figures(first, second))


def _settings(run: RunView) -> list[tuple[str, str]]:
    record = run.record
    shares = " ".join(f"{share:.3f}" for _, share, _ in run.plan)
    return [
        ("command", " ".join(record.command)),
        ("devices", ", ".join(record.devices)),
        ("layout", record.plan.layout),
        ("shares at the start", shares),
        *((f"version of {name}", record.versions.get(name, "")) for name in _VERSIONS),
        ("gathered", "; ".join(run.gathered) or "nothing"),
        ("findings of the doctor", _findings(record.diagnosis)),
    ]


def _findings(diagnosis: RecordedDiagnosis | None) -> str:
    if diagnosis is None or diagnosis.problem:
        return "not examined"
    return "; ".join(f"{each.code} {each.location}" for each in diagnosis.findings) or "none"


def _figures(first: RunView, second: RunView) -> list[Difference]:
    a, b = first.summary, second.summary
    found = [
        _figure("samples per second", a.samples_per_second, b.samples_per_second, format_number),
        _figure("a step", a.step_seconds, b.step_seconds, format_seconds),
        _figure("inside of a recorded step", a.inside_seconds, b.inside_seconds, format_seconds),
    ]
    for name in dict.fromkeys([*a.losses, *b.losses]):
        one_side, other = a.losses.get(name), b.losses.get(name)
        if isinstance(one_side, str) or isinstance(other, str):
            found.append(Difference(what=name, first=str(one_side), second=str(other)))
        else:
            found.append(_figure(name, one_side, other, format_number))
    return found


def _figure(
    what: str, first: float | None, second: float | None, text: Callable[[float], str]
) -> Difference:
    change = f"{second / first:.3g} times" if first and second is not None else ""
    return Difference(
        what=what,
        first="" if first is None else text(first),
        second="" if second is None else text(second),
        change=change,
    )


_VERSIONS = ("evener", "tensorflow", "keras", "python")
