"""Lines of pipes, log files, and a console that cannot be written to."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from evener.workers.output import Console, WorkerOutput, read_lines


def piped(*chunks: bytes) -> list[bytes]:
    reading, writing = os.pipe()
    found: list[bytes] = []
    with os.fdopen(reading, "rb") as pipe:
        lines = read_lines(pipe)
        for chunk in chunks:
            os.write(writing, chunk)
        os.close(writing)
        found.extend(lines)
    return found


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
def test_lines_are_kept_byte_by_byte(chunks: tuple[bytes, ...], lines: list[bytes]) -> None:
    assert piped(*chunks) == lines


def test_a_line_appears_before_the_next_one_is_there() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe:
        lines = read_lines(pipe)
        for text in (b"1\n", b"2\r\n", b"3\n"):
            os.write(writing, text)
            assert next(lines) == text
        os.close(writing)


def test_a_line_without_an_end_is_not_kept_for_ever() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe:
        lines = read_lines(pipe)
        # As much as a pipe holds.
        os.write(writing, b"x" * 65536)
        assert next(lines) == b"x" * 65536
        os.close(writing)


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
