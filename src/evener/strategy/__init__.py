"""Strategies and distributed steps; `Strategy` is the public name."""

from __future__ import annotations

from evener.strategy.strategy import Strategy

__all__ = [
    "Strategy",
]
