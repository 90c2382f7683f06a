"""Typical programs, unchanged under `evener run`: all devices, the results of plain Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.forked import Run, compare_with_plain_python

PROGRAMS = Path(__file__).parents[1] / "programs" / "typical"
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py"))


def test_there_are_fifteen() -> None:
    assert len(NAMES) == 15


@pytest.mark.sampled(30)
@pytest.mark.parametrize("name", NAMES)
def test_it_gives_the_results_of_plain_python(name: str, run_forked: Run, tmp_path: Path) -> None:
    found = compare_with_plain_python(run_forked, PROGRAMS / f"{name}.py", tmp_path)
    assert found.evener.stdout.startswith(found.plain.stdout)
    assert found.devices == {"CPU:0", "CPU:1"}, found
    assert "has nothing to do" not in found.evener.stderr
