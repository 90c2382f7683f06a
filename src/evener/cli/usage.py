"""Wrong usage of the command line, which ends with exit code 2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from evener.errors import EvenerError


class WrongUsage(Exception):
    """An error in what was given on the command line.

    Args:
        error: What to print.
    """

    def __init__(self, error: EvenerError) -> None:
        super().__init__(error)
        self.error = error


@contextlib.contextmanager
def wrong_usage(place: str) -> Iterator[None]:
    """Count an error raised inside as wrong usage.

    Args:
        place: The option or the file that is wrong; the message begins with it.

    Raises:
        WrongUsage: In place of an `EvenerError`.
    """
    try:
        yield
    except EvenerError as error:
        what = f"{place}: {error.what}"
        raise WrongUsage(type(error)(error.code, what, why=error.why, fix=error.fix)) from error
