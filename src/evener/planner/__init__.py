"""Search for the best plan of a cost profile.

The names are loaded when they are first used: a strategy needs the files on measured times alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evener.planner.planning import BatchSize, Planned, check_plan, plan_profile
    from evener.planner.search import Candidate, Choices, SearchResult, search_plan

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
    if name not in __all__:
        raise AttributeError(f"module 'evener.planner' has no attribute {name!r}")
    return getattr(importlib.import_module("evener.planner.planning"), name)
