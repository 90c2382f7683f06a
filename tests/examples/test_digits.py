"""The demo, run as a person runs it, but for a shorter time."""

from __future__ import annotations

import re
import signal

import pytest

from evener.plan import split_batch

from .running import run, start

PROGRAM = "digits.py"


@pytest.fixture(scope="module")
def short_run() -> tuple[int, str, str]:
    return run(PROGRAM, "--epochs", "2", "--shares", "2,1")


def test_it_learns_and_agrees_with_one_device(short_run: tuple[int, str, str]) -> None:
    code, out, err = short_run
    assert code == 0, out + err
    assert "within the tolerance of 1e-04" in out and "NOT" not in out
    accuracy = re.search(r"Test accuracy (\S+) on 360 digits", out)
    assert accuracy is not None and float(accuracy[1]) >= 0.97


def test_it_says_what_each_device_did(short_run: tuple[int, str, str]) -> None:
    _, out, _ = short_run
    rows = [line.split() for line in out.partition("What each device did")[2].splitlines()]
    cells = {row[0]: row for row in rows if row and row[0].startswith("cpu:")}
    # Two epochs of 56 batches of 128 pictures and one of 17.
    whole, last = split_batch(128, [2, 1]), split_batch(17, [2, 1])
    samples = [f"{2 * (56 * a + b):,}" for a, b in zip(whole, last, strict=True)]
    assert cells["cpu:0"][1:4] == ["66.7", "%", samples[0]]
    assert cells["cpu:1"][1:4] == ["33.3", "%", samples[1]]


def test_it_names_the_largest_difference_of_everything(short_run: tuple[int, str, str]) -> None:
    _, out, _ = short_run
    table = out.partition("How far from one device")[2]
    compared = re.findall(r"^ ([a-z ]+?)  +\d\.\de-\d\d ", table, re.MULTILINE)
    compared += re.findall(r"^ ([a-z ]+?)  +0\.0e\+00 ", table, re.MULTILINE)
    assert sorted(compared) == ["accuracy", "loss", "test accuracy", "test loss", "weights"]


def test_without_a_terminal_it_is_plain_and_quiet(short_run: tuple[int, str, str]) -> None:
    _, out, err = short_run
    assert err == ""
    assert "\x1b" not in out
    assert out.startswith("No GPU: ")
    assert len(re.findall(r"^epoch \d/2 .* samples/s", out, re.MULTILINE)) == 4


@pytest.mark.long
def test_a_run_that_learns_too_little_says_so_and_fails() -> None:
    code, out, _ = run(PROGRAM, "--epochs", "1", "--batch-size", "3000", "--devices", "cpu:1")
    assert code == 1
    assert "NOT at least 0.97" in out


@pytest.mark.long
def test_ctrl_c_ends_it_with_one_line() -> None:
    process = start(PROGRAM, "--epochs", "500")
    assert process.stdout is not None
    # The first epoch is over, and hundreds are left.
    for line in process.stdout:
        if line.startswith("epoch"):
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 130
    assert err.strip() == "Stopped by Ctrl-C."


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--devices", "cpu:two"), "[DEV-003]"),
        (("--shares", "1,one"), "is not a list of numbers"),
        (("--epochs", "0"), "--epochs"),
    ],
)
def test_wrong_usage_is_told_at_once(arguments: tuple[str, ...], says: str) -> None:
    code, out, err = run(PROGRAM, *arguments)
    assert code == 2 and says in err and out == ""
