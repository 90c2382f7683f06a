"""Hides the log that TensorFlow writes while it is imported."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, MutableMapping
from typing import Any

from evener.errors import EvenerError, EvenerWarning

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


@contextlib.contextmanager
def quiet_tensorflow(environ: MutableMapping[str, str]) -> Iterator[None]:
    """Hide TensorFlow's log while it is imported, unless the import fails.

    The log level is set for the whole process, but TensorFlow 2.21 writes some lines before it
    reads the level. These are held back, and printed if an exception is raised that is not an
    error of evener. Warnings of evener are printed at the end. If ``TF_CPP_MIN_LOG_LEVEL`` is
    ``"0"``, nothing is hidden; another level that is set stays.

    Args:
        environ: The environment variables of this process.
    """
    if environ.setdefault(LOG_LEVEL, "3") == "0":
        yield
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    with _evener_warnings_at_the_end(), tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except EvenerError:
            raise
        except BaseException:
            held.seek(0)
            os.write(terminal, held.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


@contextlib.contextmanager
def _evener_warnings_at_the_end() -> Iterator[None]:
    show = warnings.showwarning
    held: list[tuple[Any, ...]] = []

    def hold(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
        if issubclass(category, EvenerWarning):
            held.append((message, category, *args))
        else:
            show(message, category, *args, **kwargs)

    warnings.showwarning = hold
    try:
        yield
    finally:
        warnings.showwarning = show
        for given in held:
            show(*given)
