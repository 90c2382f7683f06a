"""Cases for rules: a machine, a program as text, facts with defaults."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from evener.devices.machine import NvmlGpu, NvmlMachine
from evener.doctor import Finding, Reading, Surroundings, judge, read_program
from evener.doctor.facts import CodeLine, Ending, Facts, Outcome, Steps

IMPORTS = "import keras\nimport numpy as np\nimport tensorflow as tf\n"
GIB = 2**30
SCRIPT = "/project/train.py"


def machine(*gibibytes: int, **given: Any) -> Surroundings:
    """Return a machine with GPUs of some sizes."""
    gpus = tuple(
        NvmlGpu(index=index, name="NVIDIA GeForce RTX 3090", memory_total_bytes=size * GIB)
        for index, size in enumerate(gibibytes)
    )
    return Surroundings(machine=NvmlMachine(gpus=gpus), **given)


def line(number: int) -> CodeLine:
    return CodeLine(file=SCRIPT, line=number)


def facts(**given: Any) -> Facts:
    """Return facts of a run of 20 steps of 10 ms that ended well."""
    steps = Steps(kind="fit", where=line(1), num_steps=20, num_timed=19, step_seconds=0.01)
    usual = {"ending": Ending(outcome=Outcome.ENOUGH, seconds=5.0), "steps": (steps,)}
    return Facts(**{**usual, **given})


def codes_of_facts(found: Facts, around: Surroundings | None = None) -> list[str]:
    """Return the codes that the rules find in facts alone."""
    around = machine() if around is None else around
    findings, _ = judge(found, Reading(script=SCRIPT), around)
    return [finding.code for finding in findings]


def write(program: str, folder: Path) -> Path:
    """Write a program, with the usual imports before it unless it has its own."""
    text = textwrap.dedent(program).strip() + "\n"
    path = folder / "train.py"
    path.write_text(text if "import tensorflow" in text else IMPORTS + text, encoding="utf-8")
    return path


def read(path: Path, around: Surroundings | None = None) -> tuple[Finding, ...]:
    """Return what the rules find in the text of a program."""
    return judge(None, read_program(path), machine(24) if around is None else around)[0]


def codes(findings: Iterable[Finding]) -> list[str]:
    return [finding.code for finding in findings]
