"""Layouts that a benchmark compares, each with the command that gives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evener.bench.request import Kind
from evener.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A layout to measure.

    Attributes:
        name: Name in the table.
        command: Command that runs the script so; empty if there is none.
        kind: Strategy of the run.
        shares: ``"even"``, or None for measured shares.
        plan: Plan; None for devices and shares.
        jit_compile: Value of ``jit_compile``; None for that of the script.
        problem: Reason why it cannot run; empty if it can.
    """

    name: str
    command: str = ""
    kind: Kind = "evener"
    shares: str | None = None
    plan: Plan | None = None
    jit_compile: bool | None = None
    problem: str = ""


def contenders(
    devices: Sequence[str], *, spec: str | None, words: str, planned: Plan | str, with_xla: bool
) -> list[Contender]:
    """Return the layouts to compare.

    Args:
        devices: Names of the devices, two or more.
        spec: Device spec of the command; None for the default.
        words: Script with its arguments, on a command line.
        planned: Plan of the planner; or the reason why there is none.
        with_xla: Whether to measure each with XLA, and without.
    """
    option = "" if spec is None else f"--devices {spec} "
    plan = planned if isinstance(planned, Plan) else None
    found = [
        Contender(
            name=f"{devices[0]} alone",
            # One device on the CPU is all of it.
            command=f"evener run --devices {_alone(devices[0])} {words}",
            plan=Plan.data_parallel(devices[:1]),
        ),
        Contender(name="MirroredStrategy", kind="mirrored"),
        Contender(
            name="evener, even shares",
            command=f"evener run {option}--shares even {words}",
            shares="even",
        ),
        Contender(name="evener, measured shares", command=f"evener run {option}{words}"),
        Contender(
            name="evener, planned" + (f": {plan.layout}" if plan else ""),
            command=f"evener run {option}--plan auto {words}",
            plan=plan,
            problem="" if plan else str(planned),
        ),
    ]
    if not with_xla:
        return found
    return [_with_jit(each, jit=jit) for each in found for jit in (False, True)]


def _alone(device: str) -> str:
    return "cpu:1" if device.startswith("cpu:") else device


def _with_jit(contender: Contender, *, jit: bool) -> Contender:
    return Contender(
        name=f"{contender.name}, {'with' if jit else 'without'} XLA",
        command=contender.command,
        kind=contender.kind,
        shares=contender.shares,
        plan=contender.plan,
        jit_compile=jit,
        problem=contender.problem,
    )
