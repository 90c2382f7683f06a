"""What is shown when a script fails: what Python would show, beginning at the script's line."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from evener.errors import EvenerError, RunError
from evener.launch.place import Place, is_own

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

# What stands around and between the script's own calls when it runs.
_HERE = str(Path(__file__).parent)
# TensorFlow's name for a value per replica, in the texts of its errors and Keras's.
_PER_REPLICA = "PerReplica"


def show_failures_of(path: str) -> None:
    """Let uncaught exceptions of a script be shown without the frames that run it.

    Call it when the script has failed: until then it may have set a hook of its own.

    Args:
        path: The script's file.
    """
    sys.excepthook = without_our_frames(path, sys.excepthook)


def without_our_frames(path: str, show: Hook) -> Hook:
    """Return a hook that shows what is left after taking our frames out."""

    def hook(
        kind: type[BaseException], error: BaseException, found: TracebackType | None
    ) -> object:
        ours = error if isinstance(error, EvenerError) else _wrapped(error, found)
        places = [] if ours is None else _places(ours, found)
        if places:
            print(ours, *places, sep="\n", file=sys.stderr)
            return None
        for one in _chain(error):
            one.__traceback__ = trimmed(one.__traceback__)
        left = from_file(trimmed(found), path)
        place = own_place_of(found)
        shown = show(kind, error.with_traceback(left), left)
        if place is not None and _PER_REPLICA in str(error):
            print(_of_one_replica(place), file=sys.stderr)
        return shown

    return hook


def _wrapped(error: BaseException, found: TracebackType | None) -> EvenerError | None:
    """Return the error of evener that a library has put into one of its own, if it has."""
    raised = [one for one, _ in traceback.walk_tb(found)]
    if not raised or is_own(raised[-1].f_code.co_filename):
        return None
    return next((one for one in _chain(error) if isinstance(one, EvenerError)), None)


def _of_one_replica(place: Place) -> RunError:
    """Return what a failure means in which a value per replica was taken for a tensor."""
    return RunError(
        "RUN-010",
        f"{place}: a value per replica was used as one, outside of strategy.run.",
        why="What a distributed dataset yields and what strategy.run returns holds one value "
        "for each device.",
        fix="hand a batch to a function by strategy.run(function, args=(batch,)), and make one "
        "of a result by strategy.reduce('SUM', result, axis=None).",
    )


def _places(error: EvenerError, found: TracebackType | None) -> list[str]:
    """Return the lines that name the script's place: the error's own, else the traceback's.

    In functions that AutoGraph has rewritten, a traceback does not know the line.
    """
    ours = own_place_of(found)
    return getattr(error, "__notes__", []) or ([ours.as_in_a_traceback()] if ours else [])


def own_place_of(found: TracebackType | None) -> Place | None:
    """Return the innermost own line of a traceback, or None."""
    places = [
        Place(path=frame.f_code.co_filename, line=line, function=frame.f_code.co_name)
        for frame, line in traceback.walk_tb(found)
        if is_own(frame.f_code.co_filename)
    ]
    return places[-1] if places else None


def trimmed(found: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this folder."""
    kept = [one for one in _links(found) if not _file(one).startswith(_HERE)]
    left: TracebackType | None = None
    for one in reversed(kept):
        left = TracebackType(left, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return left


def from_file(found: TracebackType | None, path: str) -> TracebackType | None:
    """Return the part of a traceback that begins in a file, or None."""
    return next((one for one in _links(found) if _file(one) == path), None)


def _file(one: TracebackType) -> str:
    return one.tb_frame.f_code.co_filename


def _links(found: TracebackType | None) -> Iterator[TracebackType]:
    while found is not None:
        yield found
        found = found.tb_next


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions that led to this one."""
    seen = {id(error)}
    waiting = [error.__cause__, error.__context__]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [one.__cause__, one.__context__]
