"""DOC-102: a TensorFlow without GPU support, on a machine with GPUs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from evener.analysis import Location, Program
from evener.doctor.finding import Severity
from evener.doctor.queries.imports import first_import
from evener.doctor.rule import Case, Violation

_WHEELS = ("tensorflow-cpu", "tensorflow-cpu-aws", "intel-tensorflow", "tf-nightly-cpu")
_WHEEL = re.compile(
    r"(?<![\w-])(tensorflow[-_]cpu(?:[-_]aws)?|intel[-_]tensorflow|tf[-_]nightly[-_]cpu)(?![\w-])"
)
_FILES = ("requirements*.txt", "requirements/*.txt", "environment*.y*ml", "pyproject.toml")
_MOST_BYTES = 200_000
_FIX = "pip uninstall {name}, then pip install 'tensorflow[and-cuda]'."


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    # It is about this machine, whichever the program is judged for.
    gpus = case.surroundings.machine.gpus
    if not gpus:
        return
    first = first_import(case.program)
    if first is None:
        return
    there = f"the machine has {len(gpus)} GPU(s): {gpus[0].name}"
    installed = [name for name in _WHEELS if name in case.surroundings.packages]
    for name in installed:
        version = case.surroundings.packages[name]
        yield Violation(
            first,
            f"the installed TensorFlow has no GPU support: {name} {version}.",
            why="This wheel is built without CUDA: it sees no GPU, and all work falls to the CPU.",
            fix=_FIX.format(name=name),
            evidence=(f"{name} {version}", there),
        )
    for location in _required(case.program):
        match = _WHEEL.search(location.text)
        name = match.group(1) if match else "tensorflow-cpu"
        yield Violation(
            location,
            f"{name} is required, a TensorFlow without GPU support.",
            why="Whoever installs this gets a wheel built without CUDA, which sees no GPU.",
            fix="require tensorflow[and-cuda] instead.",
            evidence=(location.text, there),
            severity=Severity.WARNING,
        )


def _required(program: Program) -> Iterator[Location]:
    """Yield the lines that require such a wheel: the script's own, and of files beside it."""
    for module in program.modules:
        for number, line in enumerate(module.lines, start=1):
            if _WHEEL.search(line) and "install" in line and _is_code(module.tree, number):
                yield Location(path=module.path, line=number, text=line.strip())
    folder = Path(program.script).parent
    for pattern in _FILES:
        for path in sorted(folder.glob(pattern)):
            yield from _lines_of(path)


def _is_code(tree: ast.Module, line: int) -> bool:
    """Return whether a line is in a call, not in a comment or a text alone."""
    return any(
        isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0)
        for node in ast.walk(tree)
    )


def _lines_of(path: Path) -> Iterator[Location]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if _WHEEL.search(line.partition("#")[0]):
            yield Location(path=str(path), line=number, text=line.strip())
