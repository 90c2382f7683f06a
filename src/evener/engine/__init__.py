"""Runs a Plan: ownership, split, step, reduction, strategy, and the bridge to Keras.

Importing this package lets Keras models made under a `Strategy` train through it.
"""

from evener.engine import keras_bridge
from evener.engine.keras_bridge import footprint
from evener.engine.loops.install import install as loops_install
from evener.engine.stages.footprint import Footprint
from evener.engine.strategy import Strategy

keras_bridge.install()
loops_install()

__all__ = ["Footprint", "Strategy", "footprint"]
