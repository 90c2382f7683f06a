"""Waiting for data is told once, where it is a large part of many steps."""

from __future__ import annotations

import pytest

from evener.planner.rebalancing import NUM_STEPS, DataWait


class Run:
    """Epochs of steps with a clock of their own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.wait = DataWait(
            self.lines.append, lambda: "every worker maps all rows", clock=lambda: self.now
        )

    def read(self, seconds: float, batches: list[int]) -> list[int]:
        self.now += seconds
        return batches

    def epoch(self, num_steps: int, *, data: float, step: float, first: float = 0.0) -> None:
        for number in range(num_steps):
            seconds = data if number else first
            assert self.wait.take(lambda seconds=seconds: self.read(seconds, [1])) == [1]
            self.now += step
        assert not self.wait.take(lambda: self.read(data, []))


def test_it_is_told_once_with_its_cost() -> None:
    run = Run()
    run.epoch(4 * NUM_STEPS, data=0.1, step=0.1)
    (line,) = run.lines
    assert f"waited for its data 5.0 s of the 10.0 s of {NUM_STEPS} steps" in line
    assert "every worker maps all rows" in line


@pytest.mark.parametrize(
    ("data", "step"),
    [
        pytest.param(0.03, 0.2, id="a small part"),
        pytest.param(0.001, 0.001, id="less than a second"),
    ],
)
def test_little_is_not_told(data: float, step: float) -> None:
    run = Run()
    run.epoch(3 * NUM_STEPS, data=data, step=step)
    assert not run.lines


def test_buffers_that_are_filled_do_not_count() -> None:
    run = Run()
    for _ in range(2 * NUM_STEPS):
        run.epoch(3, first=60.0, data=0.01, step=0.1)
    assert not run.lines


def test_short_epochs_count_together() -> None:
    run = Run()
    for _ in range(NUM_STEPS):
        run.epoch(3, data=0.1, step=0.1)
    assert len(run.lines) == 1


def test_batches_between_which_nothing_is_computed_do_not_count() -> None:
    """A loop that only reads, such as one that counts the samples."""
    run = Run()
    run.wait = DataWait(run.lines.append, lambda: "", num_steps=lambda: 3, clock=lambda: run.now)
    run.epoch(3 * NUM_STEPS, data=0.1, step=0.0)
    assert not run.lines


def test_what_is_read_by_itself_counts_once() -> None:
    run = Run()

    def read() -> list[int]:
        return [*run.wait.take(lambda: run.read(0.1, [1]))]

    for _ in range(NUM_STEPS):
        run.wait.take(read)
        run.now += 0.1
    assert not run.lines
    run.wait.take(read)
    assert len(run.lines) == 1


def test_an_error_of_the_data_leaves_it_as_it_was() -> None:
    run = Run()

    def fail() -> list[int]:
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        run.wait.take(fail)
    run.epoch(2 * NUM_STEPS, data=0.1, step=0.1)
    assert len(run.lines) == 1
