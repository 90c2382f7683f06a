"""Programs that `forks` runs: what they leave behind, compared with one device."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str
    imported: frozenset[str] = frozenset()


Run = Callable[..., Done]

# Another share than even, so that what a replica scales wrong is seen.
UNEVEN = ("run", "--devices", "cpu:2", "--shares", "3,1", "--json")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A program on one device by plain Python, and under evener.

    Attributes:
        plain: The run of plain Python.
        evener: The run under `evener run`.
        devices: Devices that computed products under evener, such as ``"CPU:0"``.
    """

    plain: Done
    evener: Done
    devices: set[str]


def compare_with_plain_python(
    run: Run, script: Path, folder: Path, *, rtol: float = 1e-5
) -> Comparison:
    """Run a program both ways, and demand equal numbers."""
    plain = run("one device", str(script), "expected.npz")
    assert plain.returncode == 0, plain.stderr
    done = run("evener", *UNEVEN, str(script), "results.npz")
    assert done.returncode == 0, done.stderr
    with np.load(folder / "expected.npz") as expected, np.load(folder / "results.npz") as results:
        assert expected.files == results.files
        for key in expected.files:
            np.testing.assert_allclose(results[key], expected[key], rtol=rtol, atol=1e-5)
    products = json.loads((folder / "operations.json").read_text(encoding="utf-8"))
    return Comparison(plain=plain, evener=done, devices=set(products))
