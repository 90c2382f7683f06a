from __future__ import annotations

import pytest

from evener import Plan
from evener.errors import EngineError
from evener.strategy.prepared import StepRecords


def test_memory_of_several_workers_is_not_mixed_up() -> None:
    """Their devices have the same names, under which memory is counted."""
    plan = Plan.data_parallel(["worker:0/cpu:0", "worker:1/cpu:0"], shares=[1, 1])
    with pytest.raises(EngineError, match=r"ENG-100.*several workers"):
        StepRecords().memory_estimate(plan.replicas, 8, {})
