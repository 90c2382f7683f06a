"""Output of workers that are started one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from evener.errors import RunError
from evener.run.session import WorkerLog


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "log"
    with pytest.raises(RunError, match="RUN-014") as caught:
        WorkerLog(path)
    assert str(path) in str(caught.value)
