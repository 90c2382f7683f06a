"""End of the watched program: exception, exit or signal, and its line."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import re
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from evener.base.user_code import is_own
from evener.doctor.watch.observation import Line
from evener.doctor.watch.probes.events import Events
from evener.doctor.watch.stacks import innermost_in_message
from evener.doctor.watch.supervisor import STACKS_SIGNAL
from evener.run.script import user_line

_CODE = re.compile(r"\[([A-Z]{3,6}-\d{3})\]")
# Programs that close all files close the first ones by their numbers, and get them again.
_HIGH_FILE = 200
_MOST_MESSAGE = 4000


def dump_stacks(path: str) -> None:
    """Have Python's stacks written on a fatal signal, and when the supervisor asks for them.

    Even a thread that holds Python's lock is seen so. Python's own timer for it would keep
    forks of the program from ending.

    Args:
        path: The file that they are written to.
    """
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    kept = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _HIGH_FILE)
    os.close(opened)
    faulthandler.enable(kept, all_threads=True)
    faulthandler.register(STACKS_SIGNAL, kept, all_threads=True)


class Ending:
    """Records how the program ends.

    Args:
        events: Events to record it in.
        before: Function that is called before the process ends, to write the rest.
    """

    def __init__(self, events: Events, before: Any) -> None:
        self._events = events
        self._before = before
        self.exit_now = os._exit

    def watch(self) -> None:
        """Record calls of ``os._exit``."""
        exit_now = self.exit_now

        def _exit(status: int) -> None:
            if self._events.is_here:
                self._exits(status, "os._exit", own_line())
            exit_now(status)

        os._exit = _exit

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Record how the block ends. Its exceptions are raised again."""
        try:
            yield
        except SystemExit as error:
            self._exits(_status_of(error), "sys.exit", where_raised(error))
            raise
        except BaseException as error:
            self._events.write("raised", **described(error))
            self._before()
            raise
        self._before()

    def _exits(self, status: int, how: str, where: Line | None) -> None:
        self._events.write("exit", status=status, how=how, where=as_json(where))
        self._before()


def described(error: BaseException) -> dict[str, Any]:
    """Return an exception as the values of an event."""
    message = _message(error)
    return {
        "kind_of": type(error).__name__,
        "message": shortened(message),
        "where": as_json(where_raised(error)),
        "code": code_of(error),
    }


def code_of(error: BaseException) -> str:
    """Return the code of an error of evener, also if a library has put it into its own."""
    for raised in (error, *_causes(error)):
        code = getattr(raised, "code", "")
        if isinstance(code, str) and _CODE.fullmatch(f"[{code}]"):
            return code
    return code_in(_message(error))


def code_in(message: str) -> str:
    """Return the code that a message begins with, in the form of evener's."""
    match = _CODE.match(message.lstrip())
    return match[1] if match else ""


def where_raised(error: BaseException) -> Line | None:
    """Return the innermost line of the person's own that an exception came from.

    AutoGraph and TensorFlow write the lines of functions that they rewrote into the message;
    tracebacks do not have them.
    """
    named = innermost_in_message(_message(error), is_own)
    if named is not None:
        return named
    for raised in (error, *_causes(error)):
        own = [line for line in _lines_of(raised, raised.__traceback__) if is_own(line.file)]
        if own:
            return own[-1]
    return None


def own_line() -> Line | None:
    """Return the innermost own line that is running in this thread."""
    line = user_line()
    return None if line is None else Line(file=line.path, line=line.number)


def as_json(where: Line | None) -> list[Any] | None:
    """Return how events write a line."""
    return None if where is None else [where.file, where.line]


def shortened(message: str, most: int = _MOST_MESSAGE) -> str:
    """Return a message without its middle, if it is very long."""
    if len(message) <= most:
        return message
    half = most // 2
    return f"{message[:half]}\n[...]\n{message[-half:]}"


def _lines_of(error: BaseException, found: TracebackType | None) -> Iterator[Line]:
    for frame, number in traceback.walk_tb(found):
        yield Line(file=frame.f_code.co_filename, line=number)
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        yield Line(file=error.filename, line=error.lineno)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    raised: BaseException | None = error
    while raised is not None:
        raised = raised.__cause__ or raised.__context__
        if raised is None or id(raised) in seen:
            return
        seen.add(id(raised))
        yield raised


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failed:
        return f"its text cannot be had: {type(failed).__name__}"


def _status_of(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def flush_output() -> None:
    """Bring out what the program has printed; its streams may be closed by now."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
