"""The doctor reads whatever Python there is, without an error of its own."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest

from evener.doctor import Severity
from unit.doctor.cases import read

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
# Every so manieth file of Python's own library: all kinds of syntax, nothing that trains.
STEP = 12


FILES = sorted(LIBRARY.glob("*.py"))[::STEP]
# As long as all the others together, and ten times.
LONGEST = "pydoc"


def test_there_are_enough() -> None:
    assert len(FILES) > 10


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=pytest.mark.long if path.stem == LONGEST else ())
        for path in FILES
    ],
)
def test_the_standard_library(path: Path, tmp_path: Path) -> None:
    # Away from the others, which it imports.
    alone = Path(shutil.copy(path, tmp_path / f"{path.stem}_alone.py"))
    told = read(alone)
    assert not [str(finding) for finding in told if finding.severity is not Severity.HINT]
