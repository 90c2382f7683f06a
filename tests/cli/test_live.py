"""The live view of `evener run` and `evener launch`, on a terminal and through pipes."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pyte
import pytest

from cli.commands import environment, run

SCRIPT = """
import keras
import numpy as np

class Say(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch % 40 == 0:
            print(f"the script is at\\tbatch {batch}")

model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256), keras.layers.Dense(4)])
model.compile("sgd", "mse")
x, y = np.ones((6400, 64), "float32"), np.ones((6400, 4), "float32")
model.fit(x, y, batch_size=64, epochs=EPOCHS, callbacks=[Say()])
model.evaluate(x[:64], y[:64], verbose=0)
print("the end of the script")
"""


class Terminal:
    """A command on a terminal of its own, and what the terminal shows."""

    def __init__(self, *words: str, folder: Path, width: int = 80, **environ: str) -> None:
        self.reader, writer = pty.openpty()
        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 60, width, 0, 0))
        self.settings = termios.tcgetattr(writer)
        self.screen = pyte.Screen(width, 60)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.writer = writer
        self.process = subprocess.Popen(
            [sys.executable, "-m", "evener", *words],
            cwd=folder,
            env=environment(folder, **{"TERM": "xterm", "NO_COLOR": None, **environ}),
            stdin=writer,
            stdout=writer,
            stderr=writer,
            start_new_session=True,
        )

    def read(self, until: Callable[[], bool] = lambda: False, seconds: float = 200.0) -> None:
        """Read until something is shown, or the process has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not until():
            if select.select([self.reader], [], [], 0.2)[0]:
                content = os.read(self.reader, 65536)
                self.raw += content
                self.stream.feed(content)
            elif self.process.poll() is not None:
                return

    def shows(self, text: str) -> bool:
        return any(text in line for line in self.screen.display)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display if line.strip()]

    def close(self) -> int:
        self.read()
        code = self.process.wait(30)
        assert termios.tcgetattr(self.writer) == self.settings
        assert not self.screen.cursor.hidden
        os.close(self.reader)
        os.close(self.writer)
        return code


def epochs_of(lines: list[str]) -> list[str]:
    return [line[:9] for line in lines if line.startswith("epoch")]


def script(folder: Path, epochs: int = 3) -> str:
    (folder / "train.py").write_text(SCRIPT.replace("EPOCHS", str(epochs)), encoding="utf-8")
    return "train.py"


@pytest.mark.parametrize("width", [80, pytest.param(200, marks=pytest.mark.long)])
def test_the_view_is_below_the_output_of_the_script(tmp_path: Path, width: int) -> None:
    terminal = Terminal("run", "--devices=cpu:2", script(tmp_path), folder=tmp_path, width=width)
    terminal.read(until=lambda: terminal.shows("cpu:1") and terminal.shows("epoch 1/3"))
    assert terminal.shows("share") and terminal.shows("busy")
    assert terminal.close() == 0
    lines = terminal.lines
    assert [line for line in lines if "the script is at" in line] == [
        f"the script is at        batch {batch}" for _ in range(3) for batch in (0, 40, 80)
    ]
    without_steps = [line for line in lines if "step" not in line]
    assert epochs_of(without_steps) == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    # The last view stays, once; Keras's own bar is not there.
    assert len([line for line in lines if "step 100/100" in line]) == 1
    assert "epoch 3/3  step 100/100" in "".join(lines)
    assert b"Epoch 1/3" not in terminal.raw and b"ms/step" not in terminal.raw
    assert "the end of the script" in lines
    assert b"\tbatch 40\n".replace(b"\n", b"\r\n") in terminal.raw


@pytest.mark.long
def test_without_colour_it_is_plain_lines(tmp_path: Path) -> None:
    words = ("run", "--devices=cpu:2", script(tmp_path, 2))
    terminal = Terminal(*words, folder=tmp_path, NO_COLOR="1")
    assert terminal.close() == 0
    # Before the script, a spinner waits for TensorFlow.
    output = terminal.raw[terminal.raw.index(b"the script is at") :]
    assert b"\x1b" not in output and b"ms/step" not in output
    assert epochs_of(terminal.lines) == ["epoch 1/2", "epoch 2/2"]


@pytest.mark.long
def test_through_a_pipe_standard_output_is_that_of_the_script(tmp_path: Path) -> None:
    train = script(tmp_path, 2)
    plain = run("run", "--devices=cpu:2", train, folder=tmp_path)
    live = run("run", "--devices=cpu:2", "--live", train, folder=tmp_path)
    assert plain.returncode == live.returncode == 0, live.stderr
    own = "the script is at\tbatch 40\n"
    assert own in live.stdout and live.stdout.count(own) == plain.stdout.count(own) == 2
    # Keras's own bar stays where it was, and lines of epochs are elsewhere.
    assert "Epoch 2/2" in live.stdout and "epoch 2/2  " not in live.stdout
    assert "\x1b" not in live.stderr
    assert epochs_of(live.stderr.splitlines()) == ["epoch 1/2", "epoch 2/2"]
    assert "epoch 1/2" not in plain.stderr


def test_ctrl_c_leaves_a_terminal_that_can_be_used(tmp_path: Path) -> None:
    train = script(tmp_path, 1000)
    terminal = Terminal("run", "--devices=cpu:2", train, folder=tmp_path)
    terminal.read(until=lambda: terminal.shows("epoch 1/1000  step"))
    terminal.process.send_signal(signal.SIGINT)
    terminal.read(seconds=20)
    if terminal.process.poll() is None:
        # TensorFlow deletes a function in each epoch, and Python ignores an interrupt that is
        # raised in a `__del__`: 9 of 100 under plain Keras too. A person presses it again.
        terminal.process.send_signal(signal.SIGINT)
    assert terminal.close() == -signal.SIGINT
    assert terminal.screen.cursor.x == 0
    assert terminal.shows("KeyboardInterrupt")
    below = terminal.screen.display[terminal.screen.cursor.y :]
    assert not "".join(below).strip()


@pytest.mark.long
def test_workers_have_rows_of_one_view(tmp_path: Path) -> None:
    words = ("launch", "--workers=2", "--devices=cpu:1", script(tmp_path, 15))
    terminal = Terminal(*words, folder=tmp_path, width=120)

    def has_rows() -> bool:
        rows = [line.split() for line in terminal.lines]
        return all(any(row[:2] == [k, "cpu:0"] for row in rows) for k in "01")

    terminal.read(until=has_rows)
    assert has_rows()
    assert terminal.shows("worker") and terminal.shows("step")
    assert terminal.close() == 0
    assert terminal.shows("the end of the script") and b"ms/step" not in terminal.raw
    assert len([line for line in terminal.lines if line.startswith("epoch 15/15  ")]) == 2
