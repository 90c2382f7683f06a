"""Programs for the doctor, with the machine that their first lines describe.

# machine: 2 GPUs
# environment: CUDA_VISIBLE_DEVICES=-1
# package: tensorflow-cpu 2.21.0
# driver: 470.10
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from evener.devices.machine import NvmlGpu, NvmlMachine
from evener.doctor import Finding, Surroundings, examine

_HEADER = re.compile(r"^#\s*(machine|environment|package|driver):\s*(.+?)\s*$", re.MULTILINE)
_MARK = re.compile(r"#\s*(finding|may):\s*([A-Z]+-\d+(?:\s*,\s*[A-Z]+-\d+)*)")
_GIB = 2**30
# Unless the first lines say otherwise.
PACKAGES = {"tensorflow": "2.21.0", "keras": "3.15.1"}


def surroundings_of(source: str, *, num_gpus: int) -> Surroundings:
    """Return what is around a program, as its first lines say."""
    environment: dict[str, str] = {}
    packages = dict(PACKAGES)
    driver = "550.54.15"
    for kind, text in _HEADER.findall(source):
        if kind == "machine":
            num_gpus = int(re.findall(r"\d+", text)[0])
        elif kind == "environment":
            name, _, value = text.partition("=")
            environment[name] = value
        elif kind == "package":
            name, version = text.split()
            if name.startswith("tensorflow"):
                packages.pop("tensorflow", None)
            packages[name] = version
        else:
            driver = text
    gpus = tuple(
        NvmlGpu(
            index=index,
            uuid=f"GPU-{index}",
            name="NVIDIA GeForce RTX 3090",
            compute_capability=(8, 6),
            memory_total_bytes=24 * _GIB,
            memory_free_bytes=23 * _GIB,
            num_multiprocessors=82,
        )
        for index in range(num_gpus)
    )
    machine = NvmlMachine(
        driver_version=driver if gpus else None,
        cuda_driver_version=(12, 4) if gpus else None,
        gpus=gpus,
    )
    return Surroundings(machine=machine, environment=environment, packages=packages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Mark in a program: a finding that the doctor must, or may, report at a line."""

    file: str
    line: int
    code: str
    demanded: bool


def marks_in(path: Path) -> Iterator[Mark]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        for kind, codes in _MARK.findall(line):
            for code in re.split(r"\s*,\s*", codes):
                yield Mark(file=str(path), line=number, code=code, demanded=kind == "finding")


def findings_of(path: Path, *, num_gpus: int) -> tuple[Finding, ...]:
    """Return what the doctor finds in a program on the machine it describes."""
    source = path.read_text(encoding="utf-8")
    return examine(path, surroundings_of(source, num_gpus=num_gpus)).findings
