"""The examples, run as a person runs them, but some for a shorter time."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from evener.plan import split_batch

from .running import run, start

TRANSFORMER = "pipeline_transformer.py"
SMALL_TRANSFORMER = (
    *("--devices", "cpu:3", "--blocks", "3"),
    *("--width", "128", "--batch-size", "8"),
)
SMALL_UNEVEN = ("--", "--width", "64", "--blocks", "3")


def test_it_learns_agrees_with_one_device_and_says_what_each_device_did() -> None:
    code, out, err = run("digits.py", "--epochs", "2", "--shares", "2,1")
    assert code == 0, out + err
    assert "within the tolerance of 1e-04" in out and "NOT" not in out
    accuracy = re.search(r"Test accuracy (\S+) on 360 digits", out)
    assert accuracy is not None and float(accuracy[1]) >= 0.97
    # Without a terminal, it is plain and quiet.
    assert err == ""
    assert "\x1b" not in out
    assert out.startswith("No GPU: ")
    assert len(re.findall(r"^epoch \d/2 .* samples/s", out, re.MULTILINE)) == 4
    rows = [line.split() for line in out.partition("What each device did")[2].splitlines()]
    cells = {row[0]: row for row in rows if row and row[0].startswith("cpu:")}
    # Two epochs of 56 batches of 128 pictures and one of 17.
    whole, last = split_batch(128, [2, 1]), split_batch(17, [2, 1])
    samples = [f"{2 * (56 * a + b):,}" for a, b in zip(whole, last, strict=True)]
    assert cells["cpu:0"][1:4] == ["66.7", "%", samples[0]]
    assert cells["cpu:1"][1:4] == ["33.3", "%", samples[1]]
    table = out.partition("How far from one device")[2]
    compared = re.findall(r"^ ([a-z ]+?)  +(?:\d\.\de-\d\d|0\.0e\+00) ", table, re.MULTILINE)
    assert sorted(compared) == ["accuracy", "loss", "test accuracy", "test loss", "weights"]


@pytest.mark.long
def test_a_run_that_learns_too_little_says_so_and_fails() -> None:
    code, out, _ = run("digits.py", "--epochs", "1", "--batch-size", "3000", "--devices", "cpu:1")
    assert code == 1
    assert "NOT at least 0.97" in out


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            "custom_loop.py",
            [*(rf"epoch {k}/6  loss " for k in range(1, 7)), ".*cpu:0, cpu:1 computed"],
        ),
        (
            "independent_models.py --epochs 1",
            [
                r"cpu:0  learning rate 0\.003  test accuracy",
                r"cpu:1  learning rate 0\.001  test accuracy",
            ],
        ),
        # It keeps everything on the host.
        ("central_storage.py --epochs 1", [r"  cpu:0  [\d.]+ KiB$", "  cpu:1  0 B$"]),
    ],
    ids=["custom loop", "independent models", "central storage"],
)
def test_it_says_what_it_did_on_two_devices(words: str, lines: list[str]) -> None:
    program, *rest = words.split()
    code, out, err = run(program, "--devices", "cpu:2", *rest)
    assert code == 0, out + err
    for line in lines:
        assert re.search(f"^{line}", out, re.MULTILINE), line
    # No word but the log's: nothing is traced again, nothing is warned of.
    assert program != "custom_loop.py" or err == ""


@pytest.mark.long
def test_two_devices_have_shares_and_one_devices_weights() -> None:
    code, out, err = run("two_gpus_unlike.py", "--devices", "cpu:2", "--epochs", "3")
    assert code == 0, out + err
    shares = [float(share) for share in re.findall(r"share (\S+)%", out)]
    assert len(shares) == 2
    assert sum(shares) == pytest.approx(100, abs=0.2)
    assert re.search(r"Largest difference to one device \d\.\de-\d\d, wanted 1e-04", out)


@pytest.mark.long
def test_a_step_with_a_contrastive_loss_equals_one_device() -> None:
    code, out, err = run("distribute_step.py", "--devices", "cpu:2", "--epochs", "1")
    assert code == 0, out + err
    told = re.search(r"Verified against one device: results differ by at most (\S+),", err)
    assert told is not None
    assert float(told[1]) < 1e-5
    assert "epoch 1/1  loss" in out
    assert len(err.splitlines()) == 1


@pytest.mark.long
def test_the_plan_trains_exactly_where_halves_do_not_fit() -> None:
    code, out, err = run("uneven.py", "--devices", "cpu:1@24MiB,cpu:1@12MiB", *SMALL_UNEVEN)
    assert code == 0, out + err
    assert "ran out of memory in a step" in out
    assert re.search(r"even shares: cpu:1 needs [\d.]+ MiB and has 12.0 MiB", out), out
    assert re.search(r"a step +[\d.]+ m?s +[\d.]+ m?s", out), out
    difference = re.search(r"from one device: (\S+)", out)
    assert difference is not None and float(difference[1]) < 1e-4


@pytest.mark.long
def test_memory_that_is_enough_for_halves_is_said() -> None:
    code, out, _ = run("uneven.py", "--devices", "cpu:1@2GiB,cpu:1@1GiB", *SMALL_UNEVEN)
    assert code == 1 and "Both devices can hold half of a batch" in out


def until(process: subprocess.Popen[str], beginning: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(beginning):
            return
    pytest.fail(f"nothing begins with {beginning!r}")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        # The first epoch is over, and hundreds are left.
        pytest.param(["digits.py", "--epochs", "500"], "epoch", marks=pytest.mark.long),
        pytest.param([TRANSFORMER, *SMALL_TRANSFORMER, "--steps", "8000"], "epoch",
                     marks=pytest.mark.long),
        (["uneven.py"], ""),
    ],
    ids=["digits", "transformer", "uneven"],
)  # fmt: skip
def test_ctrl_c_ends_it_with_one_line(words: list[str], line: str) -> None:
    process = start(*words)
    until(process, line)
    process.send_signal(signal.SIGINT)
    # The output is at its end when the last process that could write to it is gone.
    _, err = process.communicate(timeout=100)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert words[0] == "uneven.py" or err.strip() == "Stopped by Ctrl-C."


@pytest.mark.long
def test_no_process_outlives_a_program_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import threading\n"
        "from child import run_in_child\n"
        "def wait(text):\n"
        "    print(text, flush=True)\n"
        "    threading.Event().wait()\n"
        "if __name__ == '__main__':\n"
        "    run_in_child(wait, 'waits')\n"
    )
    process = start(str(script))
    until(process, "waits")
    process.kill()
    process.communicate(timeout=60)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("digits.py --devices cpu:two", "[DEV-003]"),
        ("digits.py --shares 1,one", "is not a list of numbers"),
        ("digits.py --epochs 0", "--epochs"),
        ("uneven.py --devices cpu:2", "Invalid value"),
        ("uneven.py --devices gpu:0@1GiB", "Invalid value"),
        ("uneven.py --devices cpu:1@1GiB", "Invalid value"),
        (f"{TRANSFORMER} --devices cpu:two", "[DEV-003]"),
        (f"{TRANSFORMER} --devices cpu:1", "at least two devices"),
        (f"{TRANSFORMER} --devices cpu:5", "no more than there are blocks"),
        (f"{TRANSFORMER} --cap much", "is not a size"),
        (f"{TRANSFORMER} --micro-batches 17", "--micro-batches 17"),
    ],
)
def test_wrong_usage_is_told_at_once(words: str, says: str) -> None:
    code, out, err = run(*words.split())
    # The box around an error breaks its lines.
    assert says in " ".join(err.replace("│", " ").split())
    assert (code, out) == (2, "")
