"""The plan of a door: the one that was given, or that of devices and shares."""

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


def used_devices(devices: str | Sequence[str] | None) -> tuple[UsedDevice, ...]:
    """Take devices into use: those of a spec, those of some names, or all.

    Raises:
        DeviceError: If a device does not exist or cannot be configured any more.
    """
    if devices is None or isinstance(devices, str):
        return use_devices(devices)
    return resolve_devices(devices)


def use_devices_of(plan: Plan) -> None:
    """Take the devices of a plan into use.

    Raises:
        PlanError: If the plan is for devices that this machine does not have.
    """
    try:
        resolve_devices(plan.device_names)
    except DeviceError:
        plan.check_devices([device.name for device in use_devices(None)])
        raise


def data_parallel_plan(
    used: Sequence[UsedDevice],
    shares: str | Sequence[float] | None,
    owners: str | Mapping[str, str] | None,
    batch_norm: BatchNormName | None = None,
) -> Plan:
    """Return the plan with a whole replica on every device.

    Args:
        used: The devices.
        shares: As for a strategy.
        owners: As for a strategy.
        batch_norm: As for a strategy.

    Raises:
        PlanError: If shares, owners or batch_norm do not fit the devices.
    """
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
    devices = [PlanDevice(name=d.name, kind=d.kind, memory_bytes=d.memory_bytes) for d in used]
    return Plan.data_parallel(
        devices, shares=shares, owners=rules, batch_norm=batch_norm or "synchronized"
    )


def refuse_with_plan(**others: Any) -> None:
    """Refuse other arguments beside a plan: PLAN-051."""
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise PlanError(
            "PLAN-051",
            f"A plan was given together with {', '.join(given)}.",
            why="The plan already says which devices, shares and owners there are.",
            fix="Change the plan, for example with plan.with_shares([...]), or leave it out.",
        )
