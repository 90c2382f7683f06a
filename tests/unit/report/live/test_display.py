"""The table of the live view, at several widths."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from evener.report.live import LiveDevice, LiveState, line_of, panel

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


def shown(state: LiveState, width: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, force_terminal=True, _environ={})
    console.print(panel(state), no_wrap=True, overflow="ellipsis", crop=True)
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 200])
def test_all_is_there(width: int) -> None:
    title, _heads, _rule, first, second, progress, losses = shown(STATE, width)
    assert title == "Digits"
    assert first.split() == "gpu:0 75 % 95 % 8.0 GiB of 24.0 GiB".split()
    assert second.split() == "gpu:1 25 % 60 % gpu:0 31 % -".split()
    assert progress.startswith("epoch 2/3  step 20/100")
    assert progress.endswith("5,123 samples/s  1 min 30 s left") or "left" in progress
    assert losses == "loss 0.2500  accuracy 0.9000"


@pytest.mark.parametrize(
    ("width", "progress"),
    [
        (39, "epoch 2/3  step 20/100  1 min 30 s left"),
        (60, "epoch 2/3  step 20/100  5,123 samples/s  1 min 30 s left"),
    ],
)
def test_step_and_time_left_stay_on_a_narrow_terminal(width: int, progress: str) -> None:
    assert shown(STATE, width)[5] == progress


@pytest.mark.parametrize("width", [10, 24, 40])
def test_a_narrow_terminal_cuts_lines_and_has_as_many(width: int) -> None:
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
