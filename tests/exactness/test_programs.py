"""The law for programs that nobody wrote: see the package `fuzz`."""

from __future__ import annotations

import pytest

from exactness.fuzz.check import check
from exactness.fuzz.draw import draw_trial
from exactness.fuzz.reduce import reduce_trial
from exactness.fuzz.worker import describe

NUM_PROGRAMS = 10


@pytest.mark.sampled(20)
@pytest.mark.parametrize("chunk", range(10))
def test_equals_one_device(chunk: int) -> None:
    shared = compared = 0
    for index in range(NUM_PROGRAMS):
        trial = draw_trial(f"{chunk}:{index}")
        verdict = check(trial)
        if verdict.fault is not None:
            smaller, fault = reduce_trial(trial, verdict.fault)
            pytest.fail(describe(smaller, f"{fault.kind}, {fault.result} {fault.text}"))
        shared += verdict.shared
        compared += bool(verdict.compared)
    # Programs that one device cannot run, or that run on one device alone, show nothing.
    assert compared > NUM_PROGRAMS * 2 / 3
    assert shared > NUM_PROGRAMS / 2
