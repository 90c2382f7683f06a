"""Wrong usage of the command line: exit code 2."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import typer

from evener.errors import EvenerError, RunError


class WrongUsage(Exception):
    """An error in the command line arguments.

    Args:
        error: The error to print.
    """

    def __init__(self, error: EvenerError) -> None:
        super().__init__(error)
        self.error = error


@contextlib.contextmanager
def wrong_usage(source: str) -> Iterator[None]:
    """Report an error of evener raised inside as wrong usage.

    Args:
        source: Invalid option or file; the message begins with it.

    Raises:
        WrongUsage: Instead of an `EvenerError`.
    """
    try:
        yield
    except EvenerError as error:
        what = f"{source}: {error.what}"
        raise WrongUsage(type(error)(error.code, what, why=error.why, fix=error.fix)) from error


def write_result(file: Path, text: str, *, is_printed: bool = False) -> None:
    """Write a result to a file; where that fails, print it instead.

    Args:
        file: File, which `check_writable` has accepted.
        text: The result.
        is_printed: Whether the result was printed already.

    Raises:
        RunError: RUN-043 if the file cannot be written, such as on a full disk.
    """
    was_there = file.exists()
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        if not was_there:
            # A part of a result is none.
            with contextlib.suppress(OSError):
                file.unlink()
        if not is_printed:
            print(text)
        raise RunError(
            "RUN-043",
            f"{file} cannot be written.",
            why=f"{error.strerror or error}.",
            fix="Take the result from standard output, where it is printed, or give a file on "
            "another disk.",
        ) from error


def check_writable(file: Path | None) -> None:
    """Refuse a file for results that cannot be written.

    Args:
        file: Value of an option; None if the option was not given.

    Raises:
        typer.BadParameter: If it is a folder, or its folder cannot be written to.
    """
    if file is not None and (file.is_dir() or not os.access(file.parent, os.W_OK)):
        raise typer.BadParameter(f"{file} cannot be written")
