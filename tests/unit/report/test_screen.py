"""Screens of the live view: what stays on a terminal, and what is drawn again."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import evener.report.live as screens
from evener.report.live import (
    Above,
    LineScreen,
    LiveDevice,
    LiveState,
    TerminalScreen,
    can_draw,
    screen_of_process,
)
from unit.report.fakes import Terminal

LAST = "epoch 1/2  step 5/10"


def state(step: int = 5, **fields: Any) -> LiveState:
    return LiveState(epoch=1, num_epochs=2, step=step, num_steps=10, **fields)


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


@contextmanager
def drawn(terminal: Terminal, *, console: bool = True) -> Iterator[TerminalScreen]:
    """Draw on a terminal as that of the process; not in a fixture: pytest replaces the streams."""
    before, (sys.stdout, sys.stderr) = (sys.stdout, sys.stderr), (terminal, terminal)
    screen = TerminalScreen(terminal.console) if console else TerminalScreen()
    try:
        screen.open()
        try:
            yield screen
        finally:
            screen.close()
        assert (sys.stdout, sys.stderr) == (terminal, terminal)
    finally:
        sys.stdout, sys.stderr = before


def test_output_is_above_the_view_as_it_was_written(terminal: Terminal) -> None:
    with drawn(terminal) as screen:
        screen.show(state(4))
        print("a\tb", "[bold]", "wide " * 30)
        sys.stdout.buffer.write("bytes: é\n".encode())
        screen.show(state())
        text = terminal.getvalue()
        assert f"a\tb [bold] {'wide ' * 30}\n" in text
        lines = terminal.lines
    assert lines[0] == "a       b [bold] " + ("wide " * 30)[:63].rstrip()
    assert lines[3] == "bytes: é"
    assert lines[4].startswith(LAST)
    assert len([line for line in lines if "epoch" in line]) == 1


def test_the_terminal_of_the_process_stays_what_it_was(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with drawn(terminal, console=False) as screen:
        print("a line")
        screen.show(state())
        assert terminal.lines[0] == "a line" and terminal.lines[1].startswith(LAST)


def test_lines_about_the_training_colour_the_terminal_and_no_more(terminal: Terminal) -> None:
    odd = "\x1b[32mepoch\x1b[0m \x1b]0;title\x07\x1b[2J"
    file = io.StringIO()
    with drawn(terminal) as screen:
        plain = LineScreen(file)
        plain.open()
        for each in (screen, plain):
            each.say(odd)
    for text in (terminal.getvalue(), file.getvalue()):
        assert "\x1b[32mepoch\x1b[0m ]0;title[2J\n" in text


def test_a_line_that_is_not_complete_is_the_first_of_the_view(terminal: Terminal) -> None:
    with drawn(terminal) as screen:
        for percent in (10, 60):
            print(f"\r{percent} %", end="", flush=True)
            screen.show(state())
        assert terminal.lines[0] == "60 %" and terminal.lines[1].startswith(LAST)
        print("\r100 %")
        screen.show(state())
        assert terminal.lines[0] == "100 %" and terminal.lines[1].startswith(LAST)
        print("the end", end="")
    assert terminal.lines[-1] == "the end"
    assert terminal.lines[1].startswith(LAST)


def test_the_cursor_is_below_the_view_and_shown(terminal: Terminal) -> None:
    with drawn(terminal) as screen:
        for step in range(5):
            screen.show(state(step))
            # A process that is killed now leaves it so.
            assert terminal.screen.cursor.y == len(terminal.lines)
            assert not terminal.screen.cursor.hidden
    assert len(terminal.lines) == 1


def test_a_view_that_shrinks_leaves_nothing(terminal: Terminal) -> None:
    devices = tuple(LiveDevice(name=f"gpu:{k}", share=0.25) for k in range(4))
    with drawn(terminal) as screen:
        screen.show(state(devices=devices, losses={"loss": 0.5}))
        assert len(terminal.lines) == 8
        screen.show(state())
        assert len(terminal.lines) == 1


def test_more_devices_than_lines_are_counted() -> None:
    terminal = Terminal(height=12)
    devices = tuple(LiveDevice(name=f"gpu:{k}", share=0.01) for k in range(64))
    with drawn(terminal) as screen:
        for _step in range(3):
            screen.show(state(devices=devices, losses={"loss": 0.5}))
        assert "and 59 more devices" in terminal.lines
        assert terminal.lines[-2].startswith(LAST) and terminal.lines[-1] == "loss 0.5000"
        assert terminal.lines[0].startswith("device")


def test_loggers_that_keep_the_stream_write_above_too(terminal: Terminal) -> None:
    handler = logging.StreamHandler(terminal)
    logger = logging.getLogger("a program")
    logger.addHandler(handler)
    try:
        with drawn(terminal) as screen:
            screen.show(state())
            logger.warning("a warning")
            assert isinstance(handler.stream, Above)
            assert terminal.lines[0] == "a warning" and terminal.lines[1].startswith(LAST)
        assert handler.stream is terminal
    finally:
        logger.removeHandler(handler)


def test_a_fork_writes_straight_to_the_stream(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with drawn(terminal) as screen:
        screen.show(state())
        parent = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: parent + 1)
        before = len(terminal.getvalue())
        print("from a child")
        screen.show(state(9))
        assert terminal.getvalue()[before:] == "from a child\n"
        monkeypatch.setattr(os, "getpid", lambda: parent)


@pytest.mark.parametrize(
    ("environ", "draws"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_where_a_terminal_can_be_drawn_on(
    environ: dict[str, str], draws: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert can_draw(environ) == draws
    screen = screen_of_process(environ)
    assert isinstance(screen, TerminalScreen if draws else LineScreen)
    # The lines are on the same terminal.
    assert screen.replaces_bar
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert not can_draw(environ) and not screen_of_process(environ).replaces_bar


def test_lines_come_with_epochs_and_every_ten_seconds() -> None:
    now, out = [0.0], io.StringIO()
    screen = LineScreen(out, clock=lambda: now[0])
    screen.open()
    for second in range(25):
        now[0] = float(second)
        screen.show(state(second))
    screen.say("epoch 1/2  24.0 s")
    screen.close()
    screen.say("after the end")
    assert out.getvalue() == (
        "evener: epoch 1/2  step 10/10\nevener: epoch 1/2  step 20/10\nepoch 1/2  24.0 s\n"
    )


def test_the_view_of_a_notebook_is_text() -> None:
    shown = screens.text_of_view(state(devices=(LiveDevice(name="<gpu:0>", share=1.0),)))
    assert "<gpu:0>" in shown and LAST in shown and "\x1b" not in shown
