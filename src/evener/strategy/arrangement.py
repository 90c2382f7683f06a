"""Arrangement: a plan with what runs it, its layout, its shares and its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evener.devices.names import tf_device
from evener.engine.pipeline.layout import Layout
from evener.plan import Plan
from evener.strategy.across_workers import shares_of_workers
from evener.strategy.function_steps import FunctionSteps
from evener.strategy.share_controller import ShareController
from evener.workers.group import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """Plan with what runs it.

    Args:
        plan: The plan.
        layout: Layout of the plan.
        controller: Shares and times of its replicas.
        steps: Steps of the functions that run by it.
    """

    plan: Plan
    layout: Layout
    controller: ShareController
    steps: FunctionSteps


def arrange(
    plan: Plan,
    make_steps: Callable[[Layout, ShareController], FunctionSteps],
    *,
    group: Group | None,
    measured: bool,
    by_xla: bool = True,
) -> Arrangement:
    """Return the arrangement of a plan.

    Args:
        plan: The plan.
        make_steps: Function that makes its steps.
        group: The workers of the job; None if this process trains alone.
        measured: Whether the shares are rebalanced by measured times.
        by_xla: Whether XLA compiles the parts of functions with ``jit_compile=True``.
    """
    layout = Layout.of(plan, group, by_xla=by_xla)
    if group is not None:
        controller: Any = shares_of_workers(group, layout, plan.shares, measured=measured)
    else:
        memory_bytes = [device.memory_bytes for device in plan.devices] if measured else ()
        controller = ShareController(
            layout.devices, plan.shares, measured=measured, memory_bytes=memory_bytes
        )
    steps = make_steps(layout, controller)
    return Arrangement(plan=plan, layout=layout, controller=controller, steps=steps)


def count_like(arrangement: Arrangement, other: Arrangement) -> None:
    """Let an arrangement count its work if another does."""
    if other.controller.counts:
        stages = [stage for replica in arrangement.plan.replicas for stage in replica.stages]
        arrangement.controller.count(
            [tf_device(name) for name in dict.fromkeys(stage.device for stage in stages)]
        )
    if other.controller.keeps_spans:
        arrangement.controller.keep_spans()
