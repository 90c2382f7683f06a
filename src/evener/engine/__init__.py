"""Runs a Plan: ownership, split, step, reduction, strategy, and the bridge to Keras."""

from evener.engine.strategy import Strategy

__all__ = ["Strategy"]
