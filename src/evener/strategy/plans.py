"""Plan of a strategy: the one that was given, or that of devices and shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evener.devices import UsedDevice, resolve_devices, use_devices
from evener.errors import DeviceError, PlanError
from evener.plan import (
    BatchNormName,
    OwnerRule,
    Plan,
    PlanDevice,
)
from evener.strategy.across_workers import devices_of_all, own_devices
from evener.workers.group import Group


def used_devices(devices: str | Sequence[str] | None) -> tuple[UsedDevice, ...]:
    """Take devices into use: those of a spec, those of some names, or all.

    Raises:
        DeviceError: If a device does not exist or cannot be configured any more.
    """
    if devices is None or isinstance(devices, str):
        return use_devices(devices)
    return resolve_devices(devices)


def chosen_plan(
    plan: Plan | None,
    *,
    devices: str | Sequence[str] | None,
    shares: str | Sequence[float] | None,
    owners: str | Mapping[str, str] | None = None,
    batch_norm: BatchNormName | None,
    group: Group | None = None,
) -> Plan:
    """Take the devices of a strategy into use, and return its plan.

    Args:
        plan: Plan, which excludes the other arguments; None for a replica on every device.
        devices: See `evener.Strategy`.
        shares: See `evener.Strategy`.
        owners: See `evener.Strategy`.
        batch_norm: See `evener.Strategy`.
        group: The workers of the job; None if this process trains alone.

    Raises:
        DeviceError: If a device does not exist or cannot be configured any more.
        PlanError: If shares, owners or batch_norm do not fit the devices; PLAN-051 if a plan was
            given together with others; PLAN-053 if it is something else than a plan; if the plan
            is for devices that this machine lacks.
    """
    _check_is_plan(plan)
    if plan is None:
        own = [
            PlanDevice(name=d.name, kind=d.kind, memory_bytes=d.memory_bytes)
            for d in used_devices(devices)
        ]
        everywhere = own if group is None else devices_of_all(group, own)
        return _data_parallel_plan(everywhere, shares, owners, batch_norm)
    others = {"devices": devices, "shares": shares, "owners": owners, "batch_norm": batch_norm}
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise PlanError(
            "PLAN-051",
            f"A plan was given together with {', '.join(given)}.",
            why="The plan already says which devices, shares and owners there are.",
            fix="Change the plan, for example with plan.with_shares([...]), or leave it out.",
        )
    try:
        resolve_devices(plan.device_names if group is None else own_devices(group, plan))
    except DeviceError:
        plan.check_devices([device.name for device in use_devices(None)])
        raise
    return plan


def _check_is_plan(plan: object) -> None:
    """Refuse what is neither a plan nor None, such as a device spec or the name of a file.

    Raises:
        PlanError: PLAN-053.
    """
    if plan is None or isinstance(plan, Plan):
        return
    devices = "cpu:2"
    if isinstance(plan, str) and plan.endswith(".json"):
        fix = f"plan=evener.Plan.from_json(pathlib.Path({plan!r}).read_text())"
    else:
        devices = plan if isinstance(plan, str | list | tuple) else devices
        fix = f"devices={devices!r}"
    raise PlanError(
        "PLAN-053",
        f"{plan!r} is not a plan.",
        why=f"The first argument of a strategy is an evener.Plan; this is of type "
        f"{type(plan).__name__}. Devices are a keyword argument, and a file of a plan is read "
        "first.",
        fix=f"Write {fix}.",
    )


def _data_parallel_plan(
    devices: Sequence[PlanDevice],
    shares: str | Sequence[float] | None,
    owners: str | Mapping[str, str] | None,
    batch_norm: BatchNormName | None,
) -> Plan:
    if isinstance(shares, str):
        if shares != "even":
            raise PlanError(
                "PLAN-050",
                f"shares={shares!r} is not known.",
                why="Shares are numbers, 'even', or None to have them measured.",
                fix="Write shares='even' or for example shares=[320, 192].",
            )
        shares = None
    rules: Any = owners or "sharded"
    if isinstance(rules, Mapping):
        rules = tuple(OwnerRule(pattern=p, device=d) for p, d in rules.items())
    return Plan.data_parallel(
        devices, shares=shares, owners=rules, batch_norm=batch_norm or "synchronized"
    )
