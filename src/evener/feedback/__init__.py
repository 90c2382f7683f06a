"""Measured times of a run, and the changes of shares, plans and profiles that follow from them.

Pure Python: nothing here imports TensorFlow, Keras or NumPy.
"""

from __future__ import annotations

from evener.feedback.rebalancing import Rebalanced, ShareRebalancer, Window, rebalance_shares

__all__ = ["Rebalanced", "ShareRebalancer", "Window", "rebalance_shares"]
