"""What a script used that ran on all devices, as a table or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.text import Text

from evener.engine import Strategy
from evener.report.display import device_table
from evener.report.work import DeviceWork, StrategyTeam, gpu_memory

_WIDTH = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """What is known when the script has ended.

    Args:
        script: Its path as it was given.
        devices: The share of each device at the end, and what it owns.
        changes: Every change of shares, as a line.
        gathered: What was computed once, of all samples, instead of in parts, each as a line.
        notes: What was said about the script, such as what was replaced.
    """

    script: str
    devices: tuple[DeviceWork, ...]
    changes: tuple[str, ...]
    gathered: tuple[str, ...]
    notes: tuple[str, ...]


def report_of(script: str, strategy: Strategy, notes: Sequence[str]) -> ScriptRun:
    """Return the report of a run.

    Args:
        script: The script's path as it was given.
        strategy: What the script trained with.
        notes: What was said about it.
    """
    team = StrategyTeam(strategy)
    shares = dict(zip(team.devices, team.shares, strict=True))
    devices = tuple(
        DeviceWork(
            device=name,
            share=shares.get(name),
            num_samples=None,
            busy_seconds=None,
            owned=owned,
            memory=gpu_memory(name),
        )
        for name, owned in team.owned().items()
    )
    return ScriptRun(
        script=script,
        devices=devices,
        changes=tuple(map(str, strategy.sharing.events)),
        gathered=tuple(dict.fromkeys(map(str, strategy.report().gathered))),
        notes=tuple(notes),
    )


def print_report(run: ScriptRun, *, as_json: bool, console: Console | None = None) -> None:
    """Print a report on standard error: standard output is the script's.

    Args:
        run: What to print.
        as_json: As one line of JSON.
        console: Where to; None for standard error.
    """
    if as_json:
        print(json.dumps(asdict(run), ensure_ascii=False), file=sys.stderr, flush=True)
        return
    width = None if sys.stderr.isatty() else _WIDTH
    console = Console(stderr=True, width=width) if console is None else console
    console.print(Text(f"\nevener run {run.script}"), soft_wrap=True)
    console.print(device_table(run.devices))
    _print_list(console, "Changes of shares", run.changes)
    _print_list(console, "Gathered on one device", run.gathered)
    _print_list(console, "Said about the script", run.notes)


def _print_list(console: Console, heading: str, lines: Sequence[str]) -> None:
    if lines:
        console.print(Text(f"{heading}:"))
    for line in lines:
        console.print(Text(f"  {line}"), soft_wrap=True)
