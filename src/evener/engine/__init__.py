"""Runs a Plan: ownership, partitioned steps, strategies."""

from evener.engine.strategy import Strategy

__all__ = ["Strategy"]
