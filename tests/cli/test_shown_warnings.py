"""Warnings on the command line name the line that they name without evener."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import evener
from evener import cli
from evener.errors import warn

# Where a function of Keras is replaced by one of evener.
OURS = str(Path(evener.__file__).parent / "run" / "mistakes.py")


def warned_through(file: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the files of a warning about the caller, which is code of a file."""
    shown: list[str] = []
    monkeypatch.setattr(cli, "_show_any_warning", lambda *given: shown.append(given[2]))
    monkeypatch.setattr(warnings, "showwarning", cli._show_warning)
    names = {"warn": lambda: warnings.warn("Do not.", UserWarning, stacklevel=2)}
    code = compile("def call():\n    warn()", file, "exec")
    exec(code, names)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = cli._show_warning
        names["call"]()
    return shown


def test_a_replacement_of_evener_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warned_through(OURS, monkeypatch) == [__file__]


def test_other_files_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warned_through("/site-packages/keras/layer.py", monkeypatch) == [
        "/site-packages/keras/layer.py"
    ]


def test_warnings_of_evener_are_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = cli._show_warning
        warn("RUN-014", "It trains alone.", why="So.", fix="Another.")
    line = "Warning: [RUN-014] It trains alone. Why: So. Fix: Another.\n"
    assert capsys.readouterr().err == line
