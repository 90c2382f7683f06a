"""Output of workers: lines of pipes, log files, the console, and the next chief's continuation."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evener.workers.output import Console, Continuation, WorkerOutput, continuation, read_lines


@pytest.fixture
def pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "wb", buffering=0) as writer:
        yield reader, writer


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ((b"a\nb\n",), [b"a\n", b"b\n"]),
        ((b"a", b"b\nc"), [b"ab\n", b"c"]),
        ((b"1/2\r2/2\r\n",), [b"1/2\r", b"2/2\r\n"]),
        ((b"\xff\n",), [b"\xff\n"]),
        ((b"",), []),
    ],
)
def test_lines_are_kept_byte_by_byte(
    pipe: tuple[IO[bytes], IO[bytes]], chunks: tuple[bytes, ...], lines: list[bytes]
) -> None:
    reader, writer = pipe
    for chunk in chunks:
        writer.write(chunk)
    writer.close()
    assert list(read_lines(reader)) == lines


def test_a_line_appears_before_the_next_one_is_there(pipe: tuple[IO[bytes], IO[bytes]]) -> None:
    """One without an end is not kept for ever: as much as a pipe holds."""
    lines = read_lines(pipe[0])
    for text in (b"1\n", b"2\r\n", b"3\n", b"x" * 65536):
        pipe[1].write(text)
        assert next(lines) == text


def test_a_log_on_a_full_disk_does_not_stop_the_output(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / "worker-0.log").symlink_to(full)
    stdout, stderr = io.BytesIO(), io.BytesIO()
    console = Console(stdout, stderr)
    console.set_chief((0, 0))
    output = WorkerOutput((0, 0), tmp_path, console)
    output.begin("process 1")
    output.line("stdout", b"line\n")
    output.close()
    assert stdout.getvalue() == b"line\n"
    assert b"worker-0.log is incomplete: No space left on device" in stderr.getvalue()


def test_a_closed_console_is_left_alone(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stderr = io.BytesIO()
    with os.fdopen(writing, "wb", buffering=0) as stdout:
        console = Console(stdout, stderr)
        console.set_chief((0, 0))
        for _ in range(2):
            console.line((0, 0), "stdout", b"line\n")
        console.message("goes on")
    assert stderr.getvalue() == b"evener: goes on\n"


def test_read_lines_a_worker_that_failed_colour_the_terminal_and_no_more() -> None:
    stdout, stderr = io.BytesIO(), io.BytesIO()
    console = Console(stdout, stderr)
    console.set_chief((0, 0))
    line = b"\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[2J \xc3\xa9 \xff\x1b[1A\r\n"
    for index in range(2):
        console.line((index, 0), "stderr", line)
    console.show_failure((1, 0))
    shown = "[worker 1] \x1b[31mred\x1b[0m ]0;title[2J \u00e9 \ufffd[1A\n"
    # The output of the program itself is passed on as it is.
    assert stderr.getvalue() == line + shown.encode()


LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"\n"]), max_size=12)


class Written:
    """A stream that keeps what is written to it."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, content: bytes) -> None:
        self.lines.append(content)

    def flush(self) -> None:
        pass


def shown_of(before: list[bytes], own: list[bytes], num_after: int) -> list[bytes]:
    """Return what appears if worker 0 dies and worker 1 prints its last lines afterwards."""
    stream = Written()
    console = Console(stream, Written())
    console.set_chief((0, 0))
    for line in before:
        console.line((0, 0), "stdout", line)
    for line in own[: len(own) - num_after]:
        console.line((1, 0), "stdout", line)
    console.set_chief((1, 0))
    for line in own[len(own) - num_after :]:
        console.line((1, 0), "stdout", line)
    return stream.lines


@given(st.integers(0, 20), st.integers(0, 20))
def test_different_lines_appear_exactly_once(num_before: int, num_after: int) -> None:
    own = [b"%d\n" % number for number in range(20)]
    assert shown_of(own[:num_before], own, num_after) == own


@example([b"\n", b"a\n", b"\n"], 1, 0)
@given(LINES, st.integers(0, 12), st.integers(0, 12))
def test_no_line_is_lost_where_lines_repeat(
    own: list[bytes], num_before: int, num_after: int
) -> None:
    shown = iter(shown_of(own[:num_before], own, min(num_after, len(own))))
    # They appear in their order among others.
    assert all(line in shown for line in own)


@pytest.mark.parametrize(
    ("before", "own", "num_after", "shown"),
    [
        # Other lines appear from the handover on.
        ([b"a\n"], [b"x\n", b"y\n"], 1, [b"a\n", b"y\n"]),
        # A line that was not expected ends the search for expected ones.
        (
            [b"a\n", b"b\n", b"c\n"],
            [b"a\n", b"x\n", b"b\n"],
            2,
            [b"a\n", b"b\n", b"c\n", b"x\n", b"b\n"],
        ),
    ],
)
def test_lines_that_were_not_expected_appear(
    before: list[bytes], own: list[bytes], num_after: int, shown: list[bytes]
) -> None:
    assert shown_of(before, own, num_after) == shown
    assert continuation([b"a", b"b"], [b"x", b"y"]) == Continuation()
