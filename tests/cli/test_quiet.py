"""The log that TensorFlow writes while it is imported is held back."""

from __future__ import annotations

import os

import pytest

from evener.cli.conventions import LOG_LEVEL, quiet_tensorflow


@pytest.mark.parametrize(
    ("given", "level", "shown"), [(None, "3", ""), ("2", "2", ""), ("0", "0", "I0000 of absl\n")]
)
def test_lines_of_the_log_are_shown_where_all_are_asked_for(
    given: str | None, level: str, shown: str, capfd: pytest.CaptureFixture[str]
) -> None:
    environ = {} if given is None else {LOG_LEVEL: given}
    with quiet_tensorflow(environ):
        os.write(2, b"I0000 of absl\n")
    assert environ[LOG_LEVEL] == level
    assert capfd.readouterr().err == shown


def test_they_are_shown_if_the_import_fails(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ImportError), quiet_tensorflow({}):
        os.write(2, b"I0000 of absl\n")
        raise ImportError
    assert capfd.readouterr().err == "I0000 of absl\n"
