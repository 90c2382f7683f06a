"""Summaries of several workers: what a new chief adds to the log folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from evener._tf_private import workers
from evener.workers.files import Summaries, add_missing_events
from unit.workers.members import Alone, Job


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
    member = job.worker(1)
    summaries = Summaries(Alone(member))  # pyright: ignore[reportArgumentType]
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
    job.lose(0)
    summaries.take_over()
    assert steps_in(tmp_path) == [0, 1]
    # The function was traced before, with the same resource.
    step(tf.constant(2, tf.int64))
    writer.flush()
    assert steps_in(tmp_path) == [0, 1, 2]


def test_profiles_of_the_chief_alone(second: tuple[Job, Summaries]) -> None:
    job, summaries = second
    assert summaries.folder_instead() is not None
    job.lose(0)
    assert summaries.folder_instead() is None
