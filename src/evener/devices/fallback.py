"""The warning that fewer devices are used than were requested, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from evener.devices.fields import Device
from evener.devices.problem import Problem


def fallback_of(
    devices: Sequence[Device],
    problems: Sequence[Problem] = (),
    *,
    asked_for: Collection[str] | None = None,
) -> Problem | None:
    """Return why fewer GPUs are used than were requested, or None if all of them are used.

    Args:
        devices: All devices, with their use and reasons.
        problems: Problems of the whole machine.
        asked_for: The names of the requested GPUs; None for all.
    """
    gpus = [device for device in devices if device.kind == "gpu"]
    used = [device.name for device in gpus if device.use == "compute"]
    wanted = [device for device in gpus if asked_for is None or device.name in asked_for]
    missing = [gpu for gpu in wanted if gpu.reason is not None and not gpu.reason.by_choice]
    if used:
        if not missing:
            return None
        reasons = _by_reason(missing)
        return Problem(
            code="DEV-021",
            what=f"Only {', '.join(used)} will be used, not {_names(missing)}.",
            why=_explained(reasons),
            fix=next(iter(reasons)).fix,
        )
    # No GPU is left: then reasons that the user has chosen matter too.
    reasons = _by_reason(missing) | dict.fromkeys(problems, "") or _by_reason(gpus)
    return Problem(
        code="DEV-020",
        what="No GPU will be used: everything runs on cpu:0.",
        why=_explained(reasons) or "there is no GPU.",
        fix=next((reason.fix for reason in reasons), "use cpu:2 for two stand-in devices."),
    )


def _by_reason(devices: Sequence[Device]) -> dict[Problem, str]:
    """Return the names of the devices for each reason."""
    named: dict[Problem, list[Device]] = {}
    for device in devices:
        if device.reason is not None:
            named.setdefault(device.reason, []).append(device)
    return {reason: _names(group) for reason, group in named.items()}


def _explained(reasons: dict[Problem, str]) -> str:
    lines = (
        f"{names}{': ' if names else ''}{reason.what.rstrip('.')} ({reason.why.rstrip('.')})."
        for reason, names in reasons.items()
    )
    return " ".join(lines)


def _names(devices: Sequence[Device]) -> str:
    return ", ".join(device.name for device in devices)
