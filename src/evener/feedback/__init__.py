"""Feedback from measured times of a run to shares, plans and profiles.

Pure Python: nothing here imports TensorFlow, Keras or NumPy.
"""

from __future__ import annotations

from evener.planner.rebalancing import Rebalanced, ShareRebalancer, Window, rebalance_shares

__all__ = ["Rebalanced", "ShareRebalancer", "Window", "rebalance_shares"]
