"""Which device owns a variable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from evener.plan.names import HOST, HOST_DEVICE
from evener.plan.parts import OwnerRule


def owner_of(path: str, rules: Iterable[OwnerRule]) -> str | None:
    """Return the device of the first rule whose pattern matches a variable's path.

    Args:
        path: The variable's path, such as ``"encoder/dense_1/kernel"``.
        rules: In order; the first match wins. Upper and lower case differ.

    Returns:
        A device name (``"host"`` comes back as ``"cpu:0"``), or None if no rule matches.

    >>> rules = owner_rules({"embedding/*": "host", "*": "gpu:0"})
    >>> owner_of("embedding/table", rules), owner_of("dense/kernel", rules)
    ('cpu:0', 'gpu:0')
    """
    for rule in rules:
        if fnmatchcase(path, rule.pattern):
            return resolve_host(rule.device)
    return None


def owner_rules(devices: Mapping[str, str]) -> tuple[OwnerRule, ...]:
    """Return the rules that a mapping from pattern to device writes shorter."""
    return tuple(OwnerRule(pattern=pattern, device=devices[pattern]) for pattern in devices)


def resolve_host(device: str) -> str:
    """Return ``"cpu:0"`` for ``"host"``, and every other name unchanged."""
    return HOST_DEVICE if device == HOST else device
