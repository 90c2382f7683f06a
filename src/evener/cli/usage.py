"""Wrong usage of the command line: exit code 2."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import typer

from evener.errors import EvenerError


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


def check_writable(file: Path | None) -> None:
    """Refuse a file for results that cannot be written.

    Args:
        file: Value of an option; None if the option was not given.

    Raises:
        typer.BadParameter: If it is a folder, or its folder cannot be written to.
    """
    if file is not None and (file.is_dir() or not os.access(file.parent, os.W_OK)):
        raise typer.BadParameter(f"{file} cannot be written")
