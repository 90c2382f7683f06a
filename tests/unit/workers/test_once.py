"""Files that several workers write once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from evener.errors import RunError
from evener.workers.files import Once, error_from_json, error_to_json


class Workers:
    """One of two workers that are threads of this process."""

    is_late = False
    chief = 0
    view = SimpleNamespace(members=(0, 1))

    def __init__(self, index: int, given: dict[int, dict[int, Any]], barrier: Any) -> None:
        self.index = index
        self._given = given
        self._barrier = barrier
        self._count = 0

    def exchange(self, name: str, value: Any, *, timeout_seconds: float | None = None) -> list[Any]:
        del name, timeout_seconds
        self._count += 1
        values = self._given.setdefault(self._count, {})
        values[self.index] = value() if callable(value) else value
        self._barrier.wait(timeout=30)
        return [values[0], values[1]]


def on_both(call: Callable[[int, Once], Any]) -> list[Any]:
    """Return the results, or the errors, of both workers."""
    given: dict[int, dict[int, Any]] = {}
    barrier = threading.Barrier(2)

    def work(index: int) -> Any:
        try:
            return call(index, Once(Workers(index, given, barrier)))
        except (RunError, OSError, ValueError) as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(work, index) for index in range(2)]
        return [future.result(timeout=60) for future in futures]


def test_the_chief_writes_and_all_get_its_value(tmp_path: Path) -> None:
    written: list[int] = []

    def call(index: int, once: Once) -> Any:
        def write() -> str:
            written.append(index)
            return f"written by {index}"

        return once.write("a file", tmp_path / "a", write)

    assert on_both(call) == ["written by 0"] * 2
    assert written == [0]


def test_workers_with_paths_of_their_own_write_both(tmp_path: Path) -> None:
    found = on_both(lambda index, once: once.write("a", tmp_path / str(index), lambda: index))
    assert found == [0, 1]


def test_the_error_of_the_writer_is_that_of_all(tmp_path: Path) -> None:
    def call(index: int, once: Once) -> Any:
        def write() -> None:
            raise FileNotFoundError(2, "No such file or directory", "folder")

        return once.write("a file", tmp_path / "a", write)

    found = on_both(call)
    assert all(isinstance(error, FileNotFoundError) for error in found)
    assert all(error.filename == "folder" for error in found)


def test_a_write_within_a_write_is_a_part_of_it(tmp_path: Path) -> None:
    def call(index: int, once: Once) -> Any:
        def inner() -> str:
            return "inner"

        return once.write("outer", tmp_path / "a", lambda: once.write("inner", "b", inner))

    assert on_both(call) == ["inner"] * 2


def test_a_file_that_one_worker_alone_finds() -> None:
    found = on_both(lambda index, once: once.check_there("reading", "a", is_there=index == 0))
    assert all(isinstance(error, RunError) and error.code == "RUN-099" for error in found)
    assert (
        on_both(lambda index, once: once.check_there("reading", "a", is_there=True)) == [None] * 2
    )


def test_a_worker_that_does_not_come_to_the_write() -> None:
    def missing(name: str, value: Any, *, timeout_seconds: float | None = None) -> list[Any]:
        raise RunError("RUN-069", "Worker 1 is missing.", why="it has not come.", fix="look.")

    workers: Any = SimpleNamespace(index=0, chief=0, is_late=False, exchange=missing)
    with pytest.raises(RunError, match=r"RUN-098.*Model\.save"):
        Once(workers).write("Model.save", "a", lambda: None)


class _Own(Exception):
    """Error of a program."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError(13, "Permission denied", "a"), PermissionError),
        (ValueError("a text"), ValueError),
        (tf.errors.NotFoundError(None, None, "a text"), tf.errors.NotFoundError),
    ],
)
def test_errors_keep_their_type(error: Exception, kind: type[Exception]) -> None:
    assert isinstance(error_from_json(error_to_json(error), 1), kind)


def test_errors_of_unknown_types_name_the_worker() -> None:
    found = error_from_json(error_to_json(_Own("a text")), 1)
    assert isinstance(found, RunError)
    assert found.code == "RUN-097"
    assert "Worker 1" in str(found) and "a text" in str(found)
