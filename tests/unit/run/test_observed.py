"""Observed steps: calls that count as a part of them."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest

from evener.run.hoisted_code import Observed

_SEEN: list[float] = []


def clock(phase: str, info: dict[str, int]) -> None:
    _SEEN.append(time.perf_counter())


class Cycle:
    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        _SEEN.append(time.perf_counter())


@pytest.fixture
def eager_collector() -> Iterator[None]:
    """Let the collector run at almost every allocation, and call a function each time."""
    before = gc.get_threshold()
    gc.callbacks.append(clock)
    gc.set_threshold(1)
    _SEEN.clear()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(clock)


def test_the_collector_runs_nothing_while_a_step_is_observed(eager_collector: None) -> None:
    Cycle()
    with Observed() as observed:
        made = [Cycle() for _ in range(100)]
        del made
    assert observed.problem is None
    assert gc.isenabled()
    assert len([Cycle() for _ in range(100)]) == 100
    assert _SEEN


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with Observed():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_clock_of_a_step_is_seen() -> None:
    with Observed() as observed:
        time.perf_counter()
    assert observed.problem is not None
    assert observed.problem[2] == "it calls time.perf_counter()"
