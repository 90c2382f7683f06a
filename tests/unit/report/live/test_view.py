"""The thread of the live view."""

from __future__ import annotations

import threading

import pytest

from evener.report.live import LiveState, LiveView, is_shown


class Screen:
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


def test_states_are_shown_beside_the_program_and_the_last_one_at_its_end() -> None:
    screen, steps = Screen(), [1]
    with LiveView(screen, lambda: LiveState(step=steps[0]), refresh_seconds=0.001):
        assert screen.was_shown.wait(30)
        assert is_shown()
        steps[0] = 2
    assert screen.calls[:2] == ["open", "show 1"] and screen.calls[-2:] == ["show 2", "close"]
    assert not is_shown()


def test_an_error_of_the_program_closes_it() -> None:
    screen = Screen()
    with pytest.raises(KeyboardInterrupt), LiveView(screen, lambda: None):
        raise KeyboardInterrupt
    assert screen.calls == ["open", "close"]


def test_an_error_of_the_view_is_told_and_does_not_end_the_program() -> None:
    screen = Screen()

    def fail() -> LiveState:
        raise ValueError("no numbers")

    with LiveView(screen, fail, refresh_seconds=0.001):
        assert screen.was_shown.wait(30)
    assert screen.calls == ["open", "evener: no live view: ValueError: no numbers", "close"]
