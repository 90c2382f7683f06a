"""Runs a Plan: ownership, split, step, reduction, strategy, and the bridge to Keras.

Importing this package lets Keras models made under a `Strategy` train through it.
"""

from evener.engine import keras_bridge
from evener.engine.keras_bridge import footprint
from evener.engine.loops.install import install as loops_install
from evener.engine.stages.footprint import Footprint
from evener.engine.strategy import Strategy
from evener.locality import install as locality_install

keras_bridge.install()
loops_install()
locality_install()

__all__ = ["Footprint", "Strategy", "footprint"]
