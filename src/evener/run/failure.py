"""Tracebacks of a failed script, as Python shows them, beginning at the script's line."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from evener.errors import EvenerError, RunError
from evener.own_code import is_own, links_of, with_files
from evener.run.user_line import UserLine

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

# Its frames are above and between those of the script.
_FOLDER = str(Path(__file__).parent)
# TensorFlow's class of per-replica values, as named in error messages.
_PER_REPLICA = "PerReplica"


def show_failures_of(path: str) -> None:
    """Show uncaught exceptions of a script without the frames of evener that run it.

    Call it after the script has failed: the script may have set `sys.excepthook` itself.

    Args:
        path: The script's file.
    """
    sys.excepthook = without_evener_frames(path, sys.excepthook)


def without_evener_frames(path: str, show: Hook) -> Hook:
    """Return an exception hook that removes the frames of evener before it calls ``show``."""

    def hook(
        kind: type[BaseException], error: BaseException, found: TracebackType | None
    ) -> object:
        known = error if isinstance(error, EvenerError) else _wrapped(error, found)
        lines = [] if known is None else _source_lines(known, found)
        if lines:
            print(known, *lines, sep="\n", file=sys.stderr)
            return None
        for linked in _chain(error):
            linked.__traceback__ = without_frames(linked.__traceback__)
        left = from_file(without_frames(found, error), path)
        line = last_user_line(found)
        shown = show(kind, error.with_traceback(left), left)
        if line is not None and _PER_REPLICA in str(error):
            print(_per_replica_value_used(line), file=sys.stderr)
        return shown

    return hook


def _wrapped(error: BaseException, found: TracebackType | None) -> EvenerError | None:
    """Return the error of evener that a library has wrapped in its own error, or None."""
    raised = [frame for frame, _ in traceback.walk_tb(found)]
    if not raised or is_own(raised[-1].f_code.co_filename):
        return None
    return next((linked for linked in _chain(error) if isinstance(linked, EvenerError)), None)


def _per_replica_value_used(line: UserLine) -> RunError:
    """Return the explanation of a failure in which a per-replica value was used as a tensor."""
    return RunError(
        "RUN-010",
        f"{line}: a per-replica value was used as a tensor, outside of strategy.run.",
        why="The batches of a distributed dataset and the results of strategy.run hold one value "
        "for each replica.",
        fix="Pass a batch to a function by strategy.run(function, args=(batch,)), and combine a "
        "result by strategy.reduce('SUM', result, axis=None).",
    )


def _source_lines(error: EvenerError, found: TracebackType | None) -> list[str]:
    """Return the script's line: from the notes of the error, else from the traceback.

    The traceback of a function that AutoGraph has converted does not have the line.
    """
    line = last_user_line(found)
    return getattr(error, "__notes__", []) or ([line.as_in_a_traceback()] if line else [])


def last_user_line(found: TracebackType | None) -> UserLine | None:
    """Return the innermost line of user code in a traceback, or None."""
    lines = [
        UserLine(path=frame.f_code.co_filename, number=number, function=frame.f_code.co_name)
        for frame, number in traceback.walk_tb(found)
        if is_own(frame.f_code.co_filename)
    ]
    return lines[-1] if lines else None


def without_frames(
    found: TracebackType | None, error: BaseException | None = None
) -> TracebackType | None:
    """Return a traceback without the frames of `evener.run`.

    Args:
        found: Traceback of an error.
        error: The error; that of a step of the script has no frames of evener at all.
    """
    if "tensorflow" in sys.modules:
        from evener._tf_private.tracebacks import shortened

        found = shortened(error, found)
    return with_files(found, lambda file: not file.startswith(_FOLDER))


def from_file(found: TracebackType | None, path: str) -> TracebackType | None:
    """Return a traceback from its first frame in a file on, or None."""
    links = links_of(found)
    return next((link for link in links if link.tb_frame.f_code.co_filename == path), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the causes and contexts of an exception."""
    seen = {id(error)}
    waiting = [error.__cause__, error.__context__]
    while waiting:
        linked = waiting.pop()
        if linked is not None and id(linked) not in seen:
            seen.add(id(linked))
            yield linked
            waiting += [linked.__cause__, linked.__context__]
