"""Scripts written for one device, unchanged under `evener run`: all devices, equal results."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.forked import Run, compare_with_plain_python

SCRIPTS = Path(__file__).parents[1] / "programs" / "one_device"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))


def test_there_are_ten() -> None:
    assert len(NAMES) == 10


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_it_gives_the_results_of_one_device(name: str, run_forked: Run, tmp_path: Path) -> None:
    found = compare_with_plain_python(run_forked, SCRIPTS / f"{name}.py", tmp_path)
    assert found.devices == {"CPU:0", "CPU:1"}, found
    assert "has nothing to do" not in found.evener.stderr
