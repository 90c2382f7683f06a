"""Every step of the corpus, on two GPUs against one.

The corpus is long: ``pytest tests/gpu/test_steps_on_gpus.py -n 4`` shares the card among as many
processes, where ``EVENER_GPU_CAPS_MIB=2048,1024`` says how much of it each may take.
"""

from __future__ import annotations

import pytest

import evener
from evener import Plan
from exactness.steps.case import CASES, graph_optimizers_of
from exactness.steps.runs import check, one_device, train
from gpu.ground import GPUS


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(CASES))
def test_equals_one_gpu(name: str) -> None:
    case = CASES[name]()
    axes = {} if case.in_axes is None else {"in_axes": case.in_axes}
    plan = Plan.data_parallel(list(GPUS.devices), shares=[5, 3])
    with graph_optimizers_of(name):
        actual = train(case, evener.distribute(case.step, plan=plan, **axes))
        check(case, one_device(name), actual, least_tolerance=GPUS.tolerance)
