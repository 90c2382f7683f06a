"""Search for the best plan of a cost profile."""

from __future__ import annotations

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
