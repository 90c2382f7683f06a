"""Strategies and distributed steps: variables with owners, shares, arguments, and their runs."""

from evener.strategy.strategy import Strategy

__all__ = ["Strategy"]
