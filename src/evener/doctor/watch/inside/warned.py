"""Warnings that are given while the program runs: Python's, and those of TensorFlow's log."""

from __future__ import annotations

import logging
import warnings
from typing import Any, TextIO

from evener.doctor.watch.inside.ending import as_json, code_in, own_line, shortened
from evener.doctor.watch.inside.events import Events
from evener.doctor.watch.seen import Line
from evener.launch.place import is_own

_LOGGERS = ("tensorflow", "absl")


class Warnings:
    """Tells each warning once, and lets it be shown as it would be.

    Args:
        events: Where to.
    """

    def __init__(self, events: Events) -> None:
        self._events = events

    def watch(self) -> None:
        """Notice Python's warnings."""
        show = warnings.showwarning

        def showwarning(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> Any:
            where = Line(file=filename, line=lineno) if is_own(filename) else own_line()
            self._tell(category.__name__, str(message), where)
            return show(message, category, filename, lineno, file, line)

        warnings.showwarning = showwarning

    def watch_logs(self) -> None:
        """Notice what TensorFlow and absl log, once they have made their loggers."""
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(_Handler(self))

    def logged(self, record: logging.LogRecord) -> None:
        """Tell what was logged as a warning or worse."""
        self._tell(record.levelname, record.getMessage(), own_line())

    def _tell(self, kind: str, message: str, where: Line | None) -> None:
        self._events.tell_once(
            "warned",
            kind_of=kind,
            message=shortened(message),
            where=as_json(where),
            code=code_in(message),
        )


class _Handler(logging.Handler):
    def __init__(self, told: Warnings) -> None:
        super().__init__(logging.WARNING)
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        self._told.logged(record)
