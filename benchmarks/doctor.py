"""Seconds that `evener doctor` takes to read a program, and Python's own start among them.

Nothing of the program is run, and TensorFlow must not be imported.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from side_by_side.figures import terminal

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "tests" / "corpus"


def program_of(num_lines: int) -> str:
    """Return one program of so many lines: programs of the corpus, one after the other.

    Each is a function, so that the names of one do not meet those of the other.
    """
    lines: list[str] = []
    sources = sorted(CORPUS.glob("idiomatic/*.py"))
    while len(lines) < num_lines:
        for number, source in enumerate(sources):
            lines += [f"def program_{number}():"]
            lines += [f"    {line}" for line in source.read_text(encoding="utf-8").splitlines()]
            lines += ["", "", f"program_{number}()", ""]
    return "\n".join(lines[:num_lines]).rpartition("\ndef ")[0] + "\n"


def seconds_of(command: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    return time.perf_counter() - begin


def main(
    *,
    rounds: Annotated[int, typer.Option(min=1)] = 7,
    lines: Annotated[int, typer.Option(min=100)] = 2000,
) -> None:
    """Time the doctor beside a Python that does nothing."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(program_of(lines), encoding="utf-8")
        num_lines = len(script.read_text(encoding="utf-8").splitlines())
        contenders = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "evener doctor --rules": [sys.executable, "-m", "evener", "doctor", "--rules"],
            f"evener doctor --no-run, {num_lines} lines": [
                *(sys.executable, "-m", "evener", "doctor", "--no-run", "--json", str(script))
            ],
        }
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, command in contenders.items():
                times[name].append(seconds_of(command))
        trace = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "evener", "doctor", str(script)],
            capture_output=True,
            text=True,
            check=False,
        ).stderr
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in trace.splitlines()}
    table = Table("command", "median s", "lowest", "highest", title="Whole processes")
    for name, took in times.items():
        table.add_row(
            name, f"{statistics.median(took):.2f}", f"{min(took):.2f}", f"{max(took):.2f}"
        )
    terminal().print(table)
    heavy = sorted({"tensorflow", "keras", "numpy"} & imported)
    terminal().print(f"Imported of TensorFlow, Keras, NumPy: {', '.join(heavy) or 'none'}")


if __name__ == "__main__":
    typer.run(main)
