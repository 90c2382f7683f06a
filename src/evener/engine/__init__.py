"""Runs a Plan: ownership, partitioned steps, strategies."""

from evener.engine.staged.keras_bridge import footprint
from evener.engine.staged.stages.footprint import Footprint
from evener.engine.strategy import Strategy
from evener.locality import install as locality_install

locality_install()

__all__ = ["Footprint", "Strategy", "footprint"]
