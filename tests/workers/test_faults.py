"""Steps of the corpus on workers that die, or miss an exchange, at every point of a step."""

from __future__ import annotations

import functools
import itertools
import os
from typing import Any

import numpy as np
import pytest

from evener.partition import emit
from exactness.steps.case import CASES, graph_optimizers_of
from exactness.steps.runs import check, reference
from workers.in_threads import Fault, Outcome, run_case, same_bits

SHARES = (5.0, 3.0, 2.0)
NAMES = sorted(CASES)
# A death at every exchange of every step takes hours: EVENER_EVERY_FAULT=1 asks for it.
DISTURBED = NAMES if os.environ.get("EVENER_EVERY_FAULT") else NAMES[::200]


@functools.cache
def exchanges_of(name: str, num_workers: int = 3) -> tuple[int, ...]:
    """Return the exchanges in each step of a case, which is exact without faults.

    Each worker is given the rows alone that it says it needs, as far as that is known.
    """
    devices, shares = (1,) * num_workers, SHARES[:num_workers]
    with graph_optimizers_of(name):
        found = run_case(CASES[name], num_devices=devices, shares=shares, spoils=True)
        hold(name, found)
    assert not found.num_retries
    return tuple(found.num_exchanges)


def hold(name: str, found: Outcome) -> None:
    """Hold what workers have left against one device, and against each other to the bit."""
    assert not found.faults_left
    assert same_bits(found.runs)
    for run in found.runs.values():
        check(CASES[name](), reference(name), run)


def run_with(name: str, *faults: Fault) -> None:
    """Run a case with faults, which end in the same numbers as on one device."""
    dead = {fault.worker for fault in faults if fault.kind.startswith("dies")}
    with graph_optimizers_of(name):
        found = run_case(CASES[name], num_devices=(1, 1, 1), shares=SHARES, faults=faults)
        hold(name, found)
    assert set(found.runs) == {0, 1, 2} - dead


@pytest.mark.sampled(20)
@pytest.mark.parametrize(
    ("name", "num_workers"), [*zip(NAMES[::15], itertools.cycle([3, 2, 2, 2]))]
)
def test_steps_without_faults(name: str, num_workers: int) -> None:
    """A few steps of the corpus; `test_written_steps` has all of them in one process."""
    assert exchanges_of(name, num_workers)


def test_rows_that_no_part_needs_are_spoilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rows that it needs, a step does not give the numbers of one device."""
    name = "vision/batchnorm_of_dense_and_of_sequences"
    options: Any = {"num_devices": (1, 1), "shares": SHARES[:2], "spoils": True}
    with graph_optimizers_of(name):
        found = run_case(CASES[name], **options)
        assert found.num_spoilt
        hold(name, found)
        monkeypatch.setattr(emit, "rows_of_parts", lambda sizes, _: np.arange(sum(sizes)) < 1)
        with pytest.raises(AssertionError):
            hold(name, run_case(CASES[name], **options))


@pytest.mark.parametrize("worker", [0, 1, 2])
def test_a_death_before_all_are_connected(worker: int) -> None:
    run_with(NAMES[0], Fault(worker=worker, step=0, exchange=0, kind="dies unconnected"))


@pytest.mark.long
@pytest.mark.parametrize("name", DISTURBED)
def test_a_death_at_every_exchange(name: str) -> None:
    """The exchanges are those of the first step and of the third, whose batch is smaller.

    The number behind the last exchange is the commit.
    """
    counts = exchanges_of(name)
    workers = itertools.cycle([1, 0, 2])
    for step in (0, 2):
        for exchange in range(counts[step] + 1):
            run_with(name, Fault(worker=next(workers), step=step, exchange=exchange))


@pytest.mark.long
@pytest.mark.parametrize("name", DISTURBED)
def test_an_exchange_that_others_have_finished(name: str) -> None:
    """A worker misses the last exchange of a step: it computes the step with their results."""
    counts = exchanges_of(name)
    for step, worker in ((0, 1), (1, 0), (len(counts) - 1, 2)):
        if counts[step]:
            last = counts[step] - 1
            run_with(name, Fault(worker=worker, step=step, exchange=last, kind="hears nothing"))
            run_with(name, Fault(worker=worker, step=step, exchange=last, kind="dies late"))
