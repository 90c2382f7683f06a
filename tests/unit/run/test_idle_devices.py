"""Devices that are said to have had little to do, after workers have died."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from evener.plan import Plan
from evener.run import loops
from evener.run.loops import IdleDevices


@pytest.mark.parametrize(
    ("members", "told"),
    [
        (
            (0, 2),
            [
                "worker:0/cpu:0 did 100 % of the training of this run, worker:2/cpu:0 had little "
                "to do: the shares of the batch are 100%, 0%, as measured"
            ],
        ),
        ((0,), []),
    ],
)
def test_nothing_is_said_of_workers_that_are_gone(
    members: tuple[int, ...], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = SimpleNamespace(flops_once={}, flops_of_parts=10, gathered=(), flops_in_turns=0)
    strategy: Any = SimpleNamespace(
        plan=Plan.data_parallel([f"worker:{index}/cpu:0" for index in range(3)]),
        shares=(1.0, 0.0, 0.0),
        report=lambda: report,
        share_controller=SimpleNamespace(is_measured=True),
    )
    group = SimpleNamespace(view=SimpleNamespace(members=members))
    monkeypatch.setattr(loops, "group_of_process", lambda: group)
    said: list[str] = []
    notes: Any = SimpleNamespace(add=lambda text, line: said.append(text), num_placed=0)
    idle = IdleDevices(strategy, notes, None)
    idle._seconds_of_strategy = 10.0
    idle.report()
    assert said == told
