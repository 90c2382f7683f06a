"""Costly work on rows that are not the samples of the batch is on all devices."""

from __future__ import annotations

import pytest

import evener
from evener.graph.ops.registry import Trait, has_trait
from evener.graph.rewrites import LOOPS
from exactness.steps.case import CASES
from exactness.steps.runs import check, train

GRADIENTS = frozenset({"Conv2DBackpropFilter", "Conv2DBackpropInput"})
NAMES = [name for name in sorted(CASES) if name.startswith("other_rows/")]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", NAMES)
def test_costly_work_is_in_parts(name: str) -> None:
    case, alone = CASES[name](), CASES[name]()
    step = evener.distribute(case.step, devices=["cpu:0", "cpu:1", "cpu:2"], shares=[13, 4, 7])
    check(case, train(alone, alone.step), train(case, step))
    for partition in (partitioned.partition for partitioned in step.partitioned_steps):
        costly = {
            node
            for node in partition.task_of
            if node.op in GRADIENTS | LOOPS or has_trait(node, Trait.COSTLY)
        }
        once = [node for node in costly if node not in partition.sharding.decisions]
        assert costly, "the case shows nothing"
        assert not once, f"computed once: {once}"
