"""DOC-103: CUDA packages or a driver that do not fit TensorFlow's build."""

from __future__ import annotations

import re
from collections.abc import Iterator

from evener.analysis import Location
from evener.base.libraries import version_numbers
from evener.devices.reasons import MINIMUM_DRIVERS
from evener.doctor.finding import Severity
from evener.doctor.queries.imports import first_import
from evener.doctor.rule import Case, Violation
from evener.doctor.surroundings import Surroundings

# The last TensorFlow for CUDA 11 is 2.14; from 2.15 on it is CUDA 12.
_FIRST_FOR_CUDA_12 = (2, 15)
_SUFFIX = re.compile(r"^nvidia-.+-cu(\d\d)$")
# From CUDA 13 on, the toolkit's packages carry no suffix; their version is CUDA's.
_TOOLKIT = ("nvidia-cuda-runtime", "nvidia-cuda-nvrtc", "nvidia-cuda-nvcc", "nvidia-cuda-cupti")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    around = case.surroundings
    wanted = _cuda_of(around)
    first = first_import(case.program)
    if wanted is None or first is None or not around.machine.gpus:
        return
    yield from _packages(around, wanted, first)
    yield from _driver(around, wanted, first)


def _packages(around: Surroundings, wanted: int, first: Location) -> Iterator[Violation]:
    found = {name: major for name in around.packages if (major := _major(around, name))}
    others = sorted(name for name, major in found.items() if major != wanted)
    fitting = sorted(name for name, major in found.items() if major == wanted)
    if not others:
        return
    version = around.packages["tensorflow"]
    listed = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
    if fitting:
        why = "Packages of two CUDA versions share folders; which libraries are loaded is chance."
    else:
        why = "No library of the right version is there: TensorFlow goes on without the GPUs."
    yield Violation(
        first,
        f"TensorFlow {version} is built for CUDA {wanted}, but {listed} is for another.",
        why=why,
        fix=f"pip uninstall {' '.join(others)}, then pip install 'tensorflow[and-cuda]'.",
        evidence=tuple(f"{name} {around.packages[name]}" for name in (*others, *fitting[:2])),
        severity=Severity.WARNING if fitting else None,
    )


def _driver(around: Surroundings, wanted: int, first: Location) -> Iterator[Violation]:
    driver, minimum = around.machine.driver_version, MINIMUM_DRIVERS.get(wanted)
    if driver is None or minimum is None or version_numbers(driver) >= version_numbers(minimum):
        return
    knows = around.machine.cuda_driver_version
    # The library of the driver may be newer than the driver: NVIDIA's compatibility packages.
    newer = knows is not None and knows[0] >= wanted
    yield Violation(
        first,
        f"the NVIDIA driver {driver} is older than CUDA {wanted} needs: {minimum}.",
        why="CUDA cannot be started, and TensorFlow goes on without the GPUs"
        + (", unless NVIDIA's compatibility packages serve this GPU." if newer else "."),
        fix=f"install an NVIDIA driver of version {minimum} or newer.",
        evidence=(f"driver {driver}", f"tensorflow {around.packages['tensorflow']}"),
        severity=Severity.WARNING if newer else None,
    )


def _cuda_of(around: Surroundings) -> int | None:
    """Return the major version of CUDA that the installed TensorFlow was built for."""
    version = around.packages.get("tensorflow")
    if version is None:
        return None
    return 12 if version_numbers(version)[:2] >= _FIRST_FOR_CUDA_12 else 11


def _major(around: Surroundings, name: str) -> int | None:
    match = _SUFFIX.match(name)
    if match:
        return int(match.group(1))
    if name in _TOOLKIT:
        return next(iter(version_numbers(around.packages[name])), None)
    return None
