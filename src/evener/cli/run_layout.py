"""Options of ``evener run`` for the layout: devices and shares, or a plan."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from evener.devices.spec import DeviceSpec
    from evener.plan import Plan
    from evener.run.session import Layout

AUTO = "auto"
"""Value of ``--plan`` for the best plan, which is found before the run."""


def read_layout(
    *, devices: str | None, plan: str | None, shares: str | None, verify: bool | None
) -> Layout:
    """Return the layout that options ask for; for ``--plan auto`` without the plan.

    Args:
        devices: Value of ``--devices``.
        plan: Value of ``--plan``.
        shares: Value of ``--shares``.
        verify: Value of ``--verify``.

    Raises:
        typer.BadParameter: If options exclude each other, or a value cannot be read.
        WrongUsage: If a plan or shares are invalid.
        SpecError: If the device spec is invalid.
    """
    from evener.devices.spec import spec_from
    from evener.run.session import Layout

    spec = spec_from(devices, os.environ)
    if plan == AUTO and shares is not None:
        raise typer.BadParameter(
            "--plan auto chooses the shares; leave out --plan or --shares", param_hint="'--shares'"
        )
    if plan is None or plan == AUTO:
        return Layout(devices=devices, shares=_read_shares(shares, spec), verify=verify)
    for option, value in (("--devices", devices), ("--shares", shares)):
        if value is not None:
            raise typer.BadParameter(
                f"a plan includes devices and shares; leave out --plan or {option}",
                param_hint=f"'{option}'",
            )
    return Layout(plan=_read_plan(Path(plan)), verify=verify)


def _read_plan(path: Path) -> Plan:
    from evener.cli.usage import wrong_usage
    from evener.plan import Plan

    if not path.exists():
        raise typer.BadParameter(f"File {str(path)!r} does not exist.", param_hint="'--plan'")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(
            f"{path} cannot be read: {error.strerror}", param_hint="'--plan'"
        ) from None
    except ValueError:
        raise typer.BadParameter(
            f"{path} is not a text file in UTF-8", param_hint="'--plan'"
        ) from None
    with wrong_usage(str(path)):
        return Plan.from_json(text)


def _read_shares(text: str | None, spec: DeviceSpec) -> str | list[float] | None:
    from evener.cli.usage import wrong_usage
    from evener.plan.shares import check_shares
    from evener.workers.job import job_from_environment

    if text is None or text == "even":
        return text
    try:
        shares = [float(share) for share in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither 'even' nor a list of numbers such as 3,1",
            param_hint="'--shares'",
        ) from None
    job = job_from_environment(os.environ)
    with wrong_usage(f"--shares {text}"):
        # The devices of other workers have shares too, and are not known yet.
        check_shares(shares, num_expected=None if job and job.count > 1 else spec.num_devices)
    return shares
