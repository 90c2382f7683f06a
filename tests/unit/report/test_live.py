"""The live view: its table, its thread, and the states of workers, through files."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from evener.base.terminal import text_of
from evener.report.live import (
    FileScreen,
    JobState,
    LiveDevice,
    LiveState,
    LiveView,
    is_shown,
    line_of,
    panel,
)

GIB = 2**30
STATE = LiveState(
    title="Digits",
    epoch=2,
    num_epochs=3,
    step=20,
    num_steps=100,
    samples_per_second=5123.4,
    seconds_left=90.0,
    losses={"accuracy": 0.9, "loss": 0.25},
    devices=(
        LiveDevice(
            name="gpu:0",
            share=0.75,
            busy=0.95,
            waits=0.004,
            waits_for="gpu:1",
            memory_bytes=8 * GIB,
            memory_limit=24 * GIB,
        ),
        LiveDevice(name="gpu:1", share=0.25, busy=0.6, waits=0.31, waits_for="gpu:0"),
    ),
)


class Calls:
    """A screen that keeps how it was called."""

    replaces_bar = True

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.was_shown = threading.Event()

    def open(self) -> None:
        self.calls.append("open")

    def show(self, state: LiveState) -> None:
        self.calls.append(f"show {state.step}")
        self.was_shown.set()

    def say(self, text: str) -> None:
        self.calls.append(text)
        self.was_shown.set()

    def close(self) -> None:
        self.calls.append("close")


def shown(state: LiveState, width: int) -> list[str]:
    options: Any = {"no_wrap": True, "overflow": "ellipsis", "crop": True}
    return text_of(lambda console: console.print(panel(state), **options), width).splitlines()


@pytest.mark.parametrize("width", [80, 200])
def test_all_is_there(width: int) -> None:
    title, _heads, _rule, first, second, progress, losses = shown(STATE, width)
    assert title == "Digits"
    assert first.split() == "gpu:0 75 % 95 % 8.0 GiB of 24.0 GiB".split()
    assert second.split() == "gpu:1 25 % 60 % gpu:0 31 % -".split()
    assert progress.startswith("epoch 2/3  step 20/100")
    assert progress.endswith("5,123 samples/s  1 min 30 s left") or "left" in progress
    assert losses == "loss 0.2500  accuracy 0.9000"


def test_step_and_time_left_stay_on_a_narrow_terminal() -> None:
    assert shown(STATE, 39)[5] == "epoch 2/3  step 20/100  1 min 30 s left"
    assert shown(STATE, 60)[5] == "epoch 2/3  step 20/100  5,123 samples/s  1 min 30 s left"
    for width in (10, 24, 40):
        lines = shown(STATE, width)
        assert len(lines) == 7
        assert max(map(len, lines)) <= width
        assert any("…" in line for line in lines)


def test_what_nobody_knows_has_no_column() -> None:
    lines = shown(LiveState(step=7, devices=(LiveDevice(name="cpu:0", share=1.0),)), 80)
    assert lines[0].split() == ["device", "share", "busy"]
    assert lines[-1] == "step 7"


def test_changes_of_shares_are_counted_in_one_line() -> None:
    changes = "shares changed 3 times; settled at 62:38 after 120 steps"
    *others, last = shown(dataclasses.replace(STATE, changes=changes), 60)
    assert (others, last) == (shown(STATE, 60), changes)


def test_workers_have_numbers() -> None:
    devices = tuple(LiveDevice(name="cpu:0", share=0.5, worker=k) for k in range(2))
    lines = shown(LiveState(step=7, devices=devices), 80)
    assert [line.split()[:2] for line in lines[2:4]] == [["0", "cpu:0"], ["1", "cpu:0"]]
    assert "worker 1 cpu:0 50 %" in line_of(LiveState(step=7, devices=devices))


def test_states_are_shown_beside_the_program_and_the_last_one_at_its_end() -> None:
    screen, steps = Calls(), [1]
    with LiveView(screen, lambda: LiveState(step=steps[0]), refresh_seconds=0.001):
        assert screen.was_shown.wait(30)
        assert is_shown()
        steps[0] = 2
    assert screen.calls[:2] == ["open", "show 1"] and screen.calls[-2:] == ["show 2", "close"]
    assert not is_shown()


def test_an_error_of_the_program_closes_it() -> None:
    screen = Calls()
    with pytest.raises(KeyboardInterrupt), LiveView(screen, lambda: None):
        raise KeyboardInterrupt
    assert screen.calls == ["open", "close"]


def test_an_error_of_the_view_is_told_and_does_not_end_the_program() -> None:
    screen = Calls()

    def fail() -> LiveState:
        raise ValueError("no numbers")

    with LiveView(screen, fail, refresh_seconds=0.001):
        assert screen.was_shown.wait(30)
    assert screen.calls == ["open", "evener: no live view: ValueError: no numbers", "close"]


def write(folder: Path, worker: int, step: int, *lines: str) -> None:
    screen = FileScreen(folder, worker, replaces_bar=True)
    for line in lines:
        screen.say(line)
    screen.show(LiveState(step=step, devices=(LiveDevice(name="cpu:0", worker=worker),)))


def test_all_workers_are_one_state(tmp_path: Path) -> None:
    said = Calls()
    job = JobState(tmp_path, said)
    assert job.state() is None
    write(tmp_path, 1, 6, "of another worker")
    write(tmp_path, 0, 7, "epoch 1/2")
    state = job.state()
    assert state is not None and state.step == 7
    assert [device.worker for device in state.devices] == [0, 1]
    job.state()
    assert said.calls == ["epoch 1/2"]
    write(tmp_path, 0, 8, "epoch 1/2", "epoch 2/2")
    job.state()
    assert said.calls == ["epoch 1/2", "epoch 2/2"]


def test_a_worker_that_is_lost_disappears(tmp_path: Path) -> None:
    write(tmp_path, 0, 7)
    write(tmp_path, 1, 9)
    long_ago = time.time() - 60
    os.utime(tmp_path / "worker-0.json", (long_ago, long_ago))
    state = JobState(tmp_path, Calls()).state()
    assert state is not None and state.step == 9
    assert [device.worker for device in state.devices] == [1]


def test_a_replacement_says_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = Calls()
    job = JobState(tmp_path, said)
    write(tmp_path, 0, 7, "epoch 1/3", "epoch 2/3")
    job.state()
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    write(tmp_path, 0, 1, "epoch 3/3")
    job.state()
    assert said.calls == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
