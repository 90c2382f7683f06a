"""Search for the best plan of a cost profile.

The names are loaded when they are first used: a strategy needs the files on measured times alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evener.planner.planning import BatchSize, Planned, check_plan, plan_profile
    from evener.planner.search import Candidate, Choices, SearchResult, search_plan

_PLANNING = "evener.planner.planning"
_SEARCH = "evener.planner.search"
_HOMES = {
    "BatchSize": _PLANNING,
    "Candidate": _SEARCH,
    "Choices": _SEARCH,
    "Planned": _PLANNING,
    "SearchResult": _SEARCH,
    "check_plan": _PLANNING,
    "plan_profile": _PLANNING,
    "search_plan": _SEARCH,
}

__all__ = [
    "BatchSize",
    "Candidate",
    "Choices",
    "Planned",
    "SearchResult",
    "check_plan",
    "plan_profile",
    "search_plan",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'evener.planner' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
