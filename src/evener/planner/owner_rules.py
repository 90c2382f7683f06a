"""Rules for the choice of owners that the search tries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from evener.planner.groupings import (
    MOST_FOR_ALL,
    Grouping,
    is_over_machines,
    kind_of,
)
from evener.profile import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerWay:
    """Rule for the choice of owners.

    Args:
        rule: Name of the rule. ``"unlimited"``: as the engine does, with unlimited memory.
            ``"spread"``: as the engine does. ``"by room"``: by the memory that samples leave free.
            ``"host"``: the host owns everything.
        reserved: Kind of device that reserves memory for all variables; None to place samples
            first.
        host: Whether the host owns layers that fit on no device.
    """

    rule: Literal["unlimited", "spread", "by room", "host"]
    reserved: tuple[str, int] | None = None
    host: bool = False


UNLIMITED = OwnerWay(rule="unlimited")


UNLIMITED_HOST = OwnerWay(rule="unlimited", host=True)


def owner_ways(grouping: Grouping, cluster: Cluster, *, host: bool) -> Iterator[OwnerWay]:
    """Yield the owner rules to try with memory limits."""
    yield OwnerWay(rule="spread")
    if is_over_machines(grouping, cluster):
        return
    yield OwnerWay(rule="by room")
    kinds = {kind_of(device, cluster) for group in grouping for device in group}
    if 1 < len(kinds) and sum(map(len, grouping)) <= MOST_FOR_ALL:
        for kind in sorted(kinds):
            yield OwnerWay(rule="by room", reserved=kind)
    if host:
        yield OwnerWay(rule="by room", host=True)
        yield OwnerWay(rule="host", host=True)
