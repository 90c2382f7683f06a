"""States of workers, through files."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from evener.report.live import FileScreen, JobState, LiveDevice, LiveState


class Said:
    replaces_bar = True

    def __init__(self) -> None:
        self.lines: list[str] = []

    def open(self) -> None: ...

    def show(self, state: LiveState) -> None: ...

    def say(self, text: str) -> None:
        self.lines.append(text)

    def close(self) -> None: ...


def write(folder: Path, worker: int, step: int, *lines: str) -> None:
    screen = FileScreen(folder, worker, replaces_bar=True)
    for line in lines:
        screen.say(line)
    screen.show(LiveState(step=step, devices=(LiveDevice(name="cpu:0", worker=worker),)))


def test_all_workers_are_one_state(tmp_path: Path) -> None:
    said = Said()
    job = JobState(tmp_path, said)
    assert job.state() is None
    write(tmp_path, 1, 6, "of another worker")
    write(tmp_path, 0, 7, "epoch 1/2")
    state = job.state()
    assert state is not None and state.step == 7
    assert [device.worker for device in state.devices] == [0, 1]
    job.state()
    assert said.lines == ["epoch 1/2"]
    write(tmp_path, 0, 8, "epoch 1/2", "epoch 2/2")
    job.state()
    assert said.lines == ["epoch 1/2", "epoch 2/2"]


def test_a_worker_that_is_lost_disappears(tmp_path: Path) -> None:
    write(tmp_path, 0, 7)
    write(tmp_path, 1, 9)
    long_ago = time.time() - 60
    os.utime(tmp_path / "worker-0.json", (long_ago, long_ago))
    state = JobState(tmp_path, Said()).state()
    assert state is not None and state.step == 9
    assert [device.worker for device in state.devices] == [1]


def test_a_replacement_says_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said()
    job = JobState(tmp_path, said)
    write(tmp_path, 0, 7, "epoch 1/3", "epoch 2/3")
    job.state()
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    write(tmp_path, 0, 1, "epoch 3/3")
    job.state()
    assert said.lines == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
