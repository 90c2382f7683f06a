"""A job on machines that are namespaces: a cable that is out."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from machines.campaign import run_job
from machines.namespaces import Machine, machines, missing
from workers.campaign import one_device

_REACH = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), 2)
except TimeoutError:
    print("nothing comes")
except ConnectionRefusedError:
    print("reached")
"""


def answer(machine: Machine, other: Machine, folder: Path) -> str:
    """Return what a machine finds where it asks another one, which listens to nobody."""
    output = folder / "answer"
    output.unlink(missing_ok=True)
    words = [sys.executable, "-c", _REACH, other.address]
    assert machine.start(words, environ=os.environ, output=output).wait() == 0
    return output.read_text().strip()


@pytest.mark.long
def test_cables_are_cut_in_both_directions_or_in_one(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    with machines(2) as (first, second):
        assert answer(first, second, tmp_path) == "reached"
        second.plug(is_in=False)
        assert answer(first, second, tmp_path) == "nothing comes"
        second.plug(is_in=True)
        second.hear_nothing()
        assert answer(first, second, tmp_path) == "nothing comes"
        second.limit()
        assert answer(first, second, tmp_path) == "reached"


@pytest.mark.long
def test_a_job_survives_a_cable_that_is_out(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    expected = one_device(tmp_path, 60, "arrays", has_checkpoints=False)
    with machines(3) as made:
        given = 60, "tensorflow", ["unplugged for 10 s"], random.Random(1), expected
        done, difference = run_job(made, tmp_path / "job", *given)
    assert done
    assert difference < 1e-5
