"""The doctor reads whatever Python there is, without an error of its own."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

from evener.doctor import Severity, Surroundings, examine

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
# Every so manieth file of Python's own library: all kinds of syntax, nothing that trains.
STEP = 12


def test_the_standard_library(tmp_path: Path) -> None:
    read = 0
    for path in sorted(LIBRARY.glob("*.py"))[::STEP]:
        # Away from the others, which it imports.
        alone = Path(shutil.copy(path, tmp_path / f"{path.stem}_alone.py"))
        told = examine(alone, Surroundings()).findings
        read += 1
        assert not [str(one) for one in told if one.severity is not Severity.HINT]
    assert read > 10
