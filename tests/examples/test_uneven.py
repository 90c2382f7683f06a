"""`make demo-uneven`, smaller: planned within two unlike memories, trained, exact."""

from __future__ import annotations

import re
import signal

import pytest

from .running import run, start

PROGRAM = "uneven.py"
SMALL = ("--", "--width", "64", "--blocks", "3")


@pytest.mark.long
def test_the_plan_trains_exactly_where_halves_do_not_fit() -> None:
    code, out, err = run(PROGRAM, "--devices", "cpu:1@24MiB,cpu:1@12MiB", *SMALL)
    assert code == 0, out + err
    assert "ran out of memory in a step" in out
    assert re.search(r"even shares: cpu:1 needs [\d.]+ MiB and has 12.0 MiB", out), out
    assert re.search(r"a step +[\d.]+ m?s +[\d.]+ m?s", out), out
    difference = re.search(r"from one device: (\S+)", out)
    assert difference is not None and float(difference[1]) < 1e-4


@pytest.mark.long
def test_memory_that_is_enough_for_halves_is_said() -> None:
    code, out, _ = run(PROGRAM, "--devices", "cpu:1@2GiB,cpu:1@1GiB", *SMALL)
    assert code == 1 and "Both devices can hold half of a batch" in out


@pytest.mark.parametrize("devices", ["cpu:2", "gpu:0@1GiB", "cpu:1@1GiB"])
def test_wrong_devices(devices: str) -> None:
    code, _, err = run(PROGRAM, "--devices", devices)
    assert code == 2 and "Invalid value" in err


def test_interrupted() -> None:
    process = start(PROGRAM)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
