"""Files of several workers: written once, summaries and text files whose writer may die."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from evener._tf_private import workers
from evener.errors import RunError
from evener.workers.files import (
    Claim,
    Once,
    SharedText,
    Summaries,
    add_missing_events,
    error_from_json,
    error_to_json,
)


@dataclass(slots=True)
class Job:
    """Workers that are there, of which the first is the chief; tests lose some."""

    members: list[int] = field(default_factory=lambda: [0, 1])

    def worker(self, index: int, *, is_late: bool = False) -> Any:
        return Member(self, index, is_late)


@dataclass(slots=True)
class Member:
    job: Job
    index: int
    is_late: bool

    @property
    def chief(self) -> int:
        return min(self.job.members)

    @property
    def view(self) -> Any:
        return SimpleNamespace(members=tuple(self.job.members))


@dataclass(slots=True)
class Alone:
    """Writes of a worker, which does not wait for the others."""

    member: Any
    waits: bool = False

    @property
    def is_chief(self) -> bool:
        return self.member.index == self.member.chief and not self.member.is_late

    def finish(self, name: str, claim: Claim, action: Callable[[], Any]) -> Any:
        """Act if the worker has the claim."""
        del name
        return action() if claim.is_mine else None


def on_both(call: Callable[[int, Once], Any]) -> list[Any]:
    """Return the results, or the errors, of two workers that are threads of this process."""
    given: dict[int, dict[int, Any]] = {}
    barrier = threading.Barrier(2)

    def once(index: int) -> Once:
        numbers = itertools.count()

        def exchange(name: str, value: Any, **_: Any) -> list[Any]:
            values = given.setdefault(next(numbers), {})
            values[index] = value() if callable(value) else value
            barrier.wait(timeout=30)
            return [values[0], values[1]]

        view = SimpleNamespace(members=(0, 1))
        workers: Any = SimpleNamespace(
            index=index, chief=0, is_late=False, view=view, exchange=exchange
        )
        return Once(workers)

    def work(index: int) -> Any:
        try:
            return call(index, once(index))
        except (RunError, OSError, ValueError) as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return [*pool.map(work, range(2), timeout=60)]


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


def test_a_write_within_a_write_is_a_part_of_it(tmp_path: Path) -> None:
    def call(index: int, once: Once) -> Any:
        def write() -> Any:
            return once.write("inner", "b", lambda: "inner")

        return once.write("outer", tmp_path / "a", write)

    assert on_both(call) == ["inner"] * 2


def test_the_error_of_the_writer_is_that_of_all(tmp_path: Path) -> None:
    def call(index: int, once: Once) -> Any:
        def write() -> None:
            raise FileNotFoundError(2, "No such file or directory", "folder")

        return once.write("a file", tmp_path / "a", write)

    found = on_both(call)
    assert all(isinstance(error, FileNotFoundError) for error in found)
    assert all(error.filename == "folder" for error in found)


def test_a_file_that_one_worker_alone_finds() -> None:
    found = on_both(lambda index, once: once.check_there("reading", "a", is_there=index == 0))
    assert all(isinstance(error, RunError) and error.code == "RUN-099" for error in found)
    found = on_both(lambda index, once: once.check_there("reading", "a", is_there=True))
    assert found == [None] * 2


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


def write(folder: Path, *steps: int, tag: str = "loss") -> None:
    """Write a scalar for each step to a new event file."""
    with tf.summary.create_file_writer(str(folder)).as_default():
        for step in steps:
            tf.summary.scalar(tag, float(step), step=step)


def steps_in(folder: Path) -> list[int]:
    """Return the steps of all scalars in a folder, in order."""
    return sorted(
        event.step
        for path in folder.glob("*tfevents*")
        for event in tf.compat.v1.train.summary_iterator(str(path))
        if event.summary.value
    )


def test_missing_events_are_added_once(tmp_path: Path) -> None:
    own, logs = tmp_path / "own", tmp_path / "logs"
    write(own, 0, 1, 2, 2, 3)
    write(logs, 0, 1, 2)
    add_missing_events(str(own), str(logs))
    assert steps_in(logs) == [0, 1, 2, 2, 3]
    add_missing_events(str(own), str(logs))
    assert steps_in(logs) == [0, 1, 2, 2, 3]


def test_a_torn_event_does_not_count(tmp_path: Path) -> None:
    own, logs = tmp_path / "own", tmp_path / "logs"
    write(own, 0, 1, 2)
    write(logs, 0, 1, 2)
    [path] = logs.glob("*tfevents*")
    path.write_bytes(path.read_bytes()[:-5])
    add_missing_events(str(own), str(logs))
    [added] = logs.glob("*taken*")
    events = [*tf.compat.v1.train.summary_iterator(str(added))]
    assert [event.step for event in events if event.summary.value] == [2]
    assert events[0].file_version == "brain.Event:2"


def test_events_of_earlier_runs_do_not_count(tmp_path: Path) -> None:
    own, logs = tmp_path / "own", tmp_path / "logs"
    write(logs, 0, 1)
    before = [str(path) for path in logs.glob("*tfevents*")]
    write(own, 0, 1)
    add_missing_events(str(own), str(logs), before)
    assert steps_in(logs) == [0, 0, 1, 1]


@pytest.fixture
def second(patches_undone: None) -> tuple[Job, Summaries]:
    """Return a job, and the summaries of its second worker, which is this process."""
    job = Job()
    summaries = Summaries(Alone(job.worker(1)))  # pyright: ignore[reportArgumentType]
    workers.redirect_summaries(summaries.choose_folder, summaries.folder_instead)
    return job, summaries


def test_a_worker_that_becomes_the_chief(second: tuple[Job, Summaries], tmp_path: Path) -> None:
    job, summaries = second
    writer = tf.summary.create_file_writer(str(tmp_path))

    @tf.function
    def step(number: Any) -> None:
        with writer.as_default():
            tf.summary.scalar("loss", 1.0, step=number)

    for number in range(2):
        step(tf.constant(number, tf.int64))
    summaries.take_over()
    assert not [*tmp_path.iterdir()]
    job.members.remove(0)
    summaries.take_over()
    assert steps_in(tmp_path) == [0, 1]
    # The function was traced before, with the same resource.
    step(tf.constant(2, tf.int64))
    writer.flush()
    assert steps_in(tmp_path) == [0, 1, 2]


def test_profiles_of_the_chief_alone(second: tuple[Job, Summaries]) -> None:
    job, summaries = second
    assert summaries.folder_instead() is not None
    job.members.remove(0)
    assert summaries.folder_instead() is None


def opened(job: Job, path: Path, before: str = "", *, is_late: bool = False) -> list[Any]:
    """Return the file as each worker has it."""
    paths = dict.fromkeys(job.members, str(path))
    members = [job.worker(index, is_late=is_late) for index in job.members]
    return [
        SharedText(Alone(member), str(path), Claim(member, str(path), paths), before)  # pyright: ignore[reportArgumentType]
        for member in members
    ]


def test_the_chief_writes_unless_it_is_a_replacement(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for is_late in (True, False):
        assert not path.exists()
        for file in opened(Job(), path, is_late=is_late):
            file.write("a\n")
            file.flush()
    assert path.read_text() == "a\n"


def test_the_next_chief_has_each_line_once(tmp_path: Path) -> None:
    """The first has written a line that the second has not come to, or the other way round."""
    for first_lines, second_lines in ((2, 1), (1, 2), (0, 2)):
        job, path = Job(), tmp_path / f"{first_lines}{second_lines}"
        first, second = opened(job, path, before="old\n")
        for file, count in ((first, first_lines), (second, second_lines)):
            for line in range(count):
                file.write(f"{line}\n")
            file.flush()
        job.members.remove(0)
        for line in range(second_lines, 3):
            second.write(f"{line}\n")
        second.close()
        assert path.read_text() == "old\n0\n1\n2\n"


def test_a_chief_that_dies_before_its_last_line(tmp_path: Path) -> None:
    job, path = Job(), tmp_path / "log"
    first, second = opened(job, path)
    first.write("0\n")
    first.flush()
    second.write("0\n")
    second.write("1\n")
    job.members.remove(0)
    second.close()
    assert path.read_text() == "0\n1\n"
