"""Writes of several workers that run the same program: one of them writes each file.

::

    worker 0   ──► arrives ┐              ┌─► writes ──► tells ┐
    worker 1   ──► arrives ┼─► all there ─┼──────────────waits ┼─► whole: all go on
    worker 2   ──► arrives ┘              └──────────────waits ┘

Nothing is written before all workers are there: another one may still read the file that is
replaced. If the worker that writes dies, the next one writes.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import tensorflow as tf

from evener.checkpoint import random_state
from evener.errors import RunError
from evener.files.failures import error_from_json, error_to_json

R = TypeVar("R")
_WRITE_SECONDS = 3600.0


class _Members(Protocol):
    @property
    def members(self) -> tuple[int, ...]:
        """Numbers of the workers that are there."""
        ...


class Workers(Protocol):
    """The workers of a job, seen by one of them."""

    @property
    def view(self) -> _Members:
        """The workers that are there."""
        ...

    @property
    def index(self) -> int:
        """Number of this worker."""
        ...

    @property
    def chief(self) -> int:
        """Number of the chief."""
        ...

    @property
    def is_late(self) -> bool:
        """Whether this worker is a replacement that does not stand with the others yet."""
        ...

    def exchange(self, name: str, value: Any, *, timeout_seconds: float | None = None) -> list[Any]:
        """Return the JSON values of all workers, in their order."""
        ...


class Claim:
    """Right to write a file: one of the workers that name the same path has it.

    Workers whose paths differ, such as those in temporary folders, each write their own file.
    ``paths`` has the paths that all workers have named, by the number of the worker.
    """

    def __init__(self, workers: Workers, path: str, paths: dict[int, str]) -> None:
        self._workers = workers
        self._others = frozenset(index for index, named in paths.items() if named != path)

    @property
    def writer(self) -> int | None:
        """Number of the worker that writes; None for a file that only this late worker names."""
        # Those who were no members then have named nothing; their program is the same.
        there = {*self._workers.view.members} - self._others
        if self._workers.chief in there:
            return self._workers.chief
        return min(there, default=None)

    @property
    def is_mine(self) -> bool:
        """Whether this worker writes the file. The writer may die, so ask it again."""
        return not self._workers.is_late and self.writer == self._workers.index


class Once:
    """Writes once what all workers of a job write.

    Workers wait for each other in the thread that makes this. In other threads, which run at their
    own pace, the chief writes and the others do not.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._thread = threading.get_ident()
        self._local = threading.local()

    def write(self, name: str, path: str | os.PathLike[str], action: Callable[[], R]) -> R | Any:
        """Let one worker write a file, and wait until it is whole.

        The name is the same on all workers. Another worker calls the action again if the writer
        dies. Returns the value of the action; on the workers that have not written, the value of
        the writer if JSON has it, else None. An error of the action is raised on all workers;
        RUN-098 if a worker does not come to the same write.
        """
        if self._is_writing:
            return action()
        if threading.get_ident() != self._thread or not tf.executing_eagerly():
            return action() if self.writes_alone else None
        return self._written(name, self.claim(name, path), action)

    def claim(self, name: str, path: str | os.PathLike[str]) -> Claim:
        """Return the right to write a file, when all have asked; RUN-098 if one does not."""
        own = full_path(path)
        told = self._exchange(f"before {name}", [self._workers.index, own])
        return Claim(self._workers, own, dict(told))

    def finish(self, name: str, claim: Claim, action: Callable[[], R]) -> R | Any:
        """Let the worker that has a claim act, and wait for it; see `write`."""
        return action() if self._is_writing else self._written(name, claim, action)

    def check_there(self, name: str, path: str | os.PathLike[str], *, is_there: bool) -> None:
        """Raise RUN-099 if a file that is about to be read is there for some workers only."""
        if self._is_writing or threading.get_ident() != self._thread:
            return
        own = full_path(path) if is_there else None
        found = dict(self._exchange(f"before {name}", [self._workers.index, own]))
        there = [index for index, path in found.items() if path is not None]
        without = [index for index in found if index not in there]
        if there and without:
            raise _not_found_by_all(found[there[0]], there[0], without)

    @property
    def waits(self) -> bool:
        """Whether a write of this thread is one for which the workers wait."""
        is_home = threading.get_ident() == self._thread and tf.executing_eagerly()
        return is_home and not self._is_writing

    @property
    def writes_alone(self) -> bool:
        """Whether this worker writes where the workers do not wait for each other."""
        return self._is_writing or self._is_chief

    @property
    def _is_chief(self) -> bool:
        return self._workers.index == self._workers.chief and not self._workers.is_late

    @property
    def _is_writing(self) -> bool:
        return getattr(self._local, "is_writing", False)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Let writes in the block be parts of one that is under way."""
        self._local.is_writing = True
        try:
            yield
        finally:
            self._local.is_writing = False

    def _written(self, name: str, claim: Claim, action: Callable[[], R]) -> R | Any:
        # A worker that has written does not write again when another one dies meanwhile.
        values: list[R] = []
        failures: list[Exception] = []

        @functools.cache
        def outcome() -> dict[str, Any]:
            before = random_state.read()
            try:
                with self._writing():
                    values.append(action())
            except Exception as error:
                failures.append(error)
                return {"error": error_to_json(error)}
            after = random_state.read()
            told = {"value": values[0] if _is_json(values[0]) else None}
            # An export may draw seeds, which the others draw alike from now on.
            return told if after == before else {**told, "random": after}

        def own() -> list[Any]:
            return [self._workers.index, outcome() if claim.is_mine else None]

        told = dict(self._exchange(f"after {name}", own, timeout_seconds=_WRITE_SECONDS))
        if failures:
            raise failures[0]
        if values:
            return values[0]
        return self._taken_over(told, claim)

    def _taken_over(self, told: dict[int, Any], claim: Claim) -> Any:
        """Return the value of the writer, and take over its random states."""
        writer = claim.writer
        writers = [index for index, outcome in told.items() if outcome is not None]
        if writer not in writers:
            # A late worker with a path of its own, or one whose view is newer than what is told.
            writer = writers[0]
        outcome = told[writer]
        if "error" in outcome:
            raise error_from_json(outcome["error"], writer)
        if "random" in outcome:
            random_state.restore(outcome["random"])
        return outcome["value"]

    def _exchange(
        self, name: str, value: Any, *, timeout_seconds: float | None = None
    ) -> list[Any]:
        try:
            return self._workers.exchange(name, value, timeout_seconds=timeout_seconds)
        except RunError as error:
            if error.code != "RUN-069":
                raise
            raise _not_called_by_all(name, error) from error


def full_path(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a local file, or the path itself if it is remote."""
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(text)  # noqa: PTH100


def _is_json(value: Any) -> bool:
    try:
        return json.loads(json.dumps(value)) is not None
    except (TypeError, ValueError):
        return False


def _not_called_by_all(name: str, error: RunError) -> RunError:
    what = name.removeprefix("before ").removeprefix("after ")
    return RunError(
        "RUN-098",
        f"Not all workers come to {what}.",
        why=f"{error.what} With several workers one of them writes each file, and the others wait "
        "for it, so all of them have to call what writes.",
        fix="Remove conditions around it such as `if task_id == 0:`, or on the time; evener writes "
        "once by itself.",
    )


def _not_found_by_all(path: str, first: int, without: list[int]) -> RunError:
    names = ", ".join(map(str, without))
    return RunError(
        "RUN-099",
        f"Worker {first} finds {path}, and worker {names} does not.",
        why="One worker writes each file, so the others can only read it from a file system that "
        "their machines have in common.",
        fix="Write to a folder that all machines have in common, such as NFS or gs://.",
    )
