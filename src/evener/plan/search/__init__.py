"""The search for the best plan."""

from __future__ import annotations

from evener.plan.search.search import Candidate, Choices, SearchResult, search_plan

__all__ = ["Candidate", "Choices", "SearchResult", "search_plan"]
