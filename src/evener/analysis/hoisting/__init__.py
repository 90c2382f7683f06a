"""Training steps that run eagerly, found in the text of a program and hoisted into functions.

names.py       the names that statements read, bind and delete
statements.py  which statements a hoisted function may hold, and why others not
regions.py     the statements from the tape to the update, and what they read and leave behind
rewrite.py     the syntax tree in which each region is a function beside the statements as written
"""

from __future__ import annotations

from evener.analysis.hoisting.regions import Obstacle, Region
from evener.analysis.hoisting.rewrite import Hoisted, hoist_steps

__all__ = ["Hoisted", "Obstacle", "Region", "hoist_steps"]
