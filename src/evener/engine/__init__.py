"""Runs a Plan: ownership, partitioned steps, strategies."""

from evener.engine.strategy import Strategy
from evener.locality import install as locality_install

locality_install()

__all__ = ["Strategy"]
