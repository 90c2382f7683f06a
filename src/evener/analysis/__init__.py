"""Files as syntax trees in which every node knows what is around it.

module.py    one file
location.py  a line of it
hoisting/    training steps that run eagerly, hoisted into functions
"""

from __future__ import annotations

from evener.analysis.location import Location
from evener.analysis.module import Module, module_of

__all__ = ["Location", "Module", "module_of"]
