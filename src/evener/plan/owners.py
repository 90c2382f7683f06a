"""Owners of variables: the rules of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from evener.plan.layer_paths import stage_of
from evener.plan.names import HOST, HOST_DEVICE
from evener.plan.parts import OwnerRule, Replica


def owner_of(path: str, rules: Iterable[OwnerRule]) -> str | None:
    """Return the device of the first rule whose pattern matches a variable's path.

    Args:
        path: Path of the variable, such as ``"encoder/dense_1/kernel"``. The part before its
            first slash may be the model's name, so the rest is matched as well.
        rules: Rules in order; the first match wins. Matching is case-sensitive.

    Returns:
        A device name (``"host"`` comes back as ``"cpu:0"``), or None if no rule matches.

    >>> rules = owner_rules({"embedding/*": "host", "*": "gpu:0"})
    >>> owner_of("embedding/table", rules), owner_of("dense/kernel", rules)
    ('cpu:0', 'gpu:0')
    """
    # Only some models put their own name before those of their layers.
    _, _, below = path.partition("/")
    for rule in rules:
        if fnmatchcase(path, rule.pattern) or ("/" in below and fnmatchcase(below, rule.pattern)):
            return resolve_host(rule.device)
    return None


def owner_rules(devices: Mapping[str, str]) -> tuple[OwnerRule, ...]:
    """Return the rules of a mapping from pattern to device."""
    return tuple(OwnerRule(pattern=pattern, device=devices[pattern]) for pattern in devices)


def resolve_host(device: str) -> str:
    """Return ``"cpu:0"`` for ``"host"``, and every other name unchanged."""
    return HOST_DEVICE if device == HOST else device


def computing_devices(path: str, replicas: Sequence[Replica]) -> tuple[str, ...]:
    """Return the devices that compute the layer of a variable, as far as its path tells.

    The path consists of the enclosing layers, sometimes after the model's name; the outermost layer
    that a stage names decides.

    Args:
        path: Path of the variable, such as ``"encoder_3/attention/kernel"``.
        replicas: Replicas of a plan.

    >>> from evener.plan import Replica, Stage
    >>> stages = (Stage(device="cpu:0", layers=("a*",)), Stage(device="cpu:1", layers=("b",)))
    >>> computing_devices("model/b/dense/kernel", [Replica(share=1, stages=stages)])
    ('cpu:1',)
    """
    layer, slash, _ = path.rpartition("/")
    devices: dict[str, None] = {}
    for replica in replicas:
        number = stage_of(layer, replica.stages) if slash else None
        if number is not None:
            devices[replica.stages[number].device] = None
    return tuple(devices)
