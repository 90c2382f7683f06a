"""Training steps that run eagerly become functions on all devices, with the values of plain Python.

values.py       arguments and results as flat tensors, with what stays Python's beside them
code.py         which code a step runs, and what it calls: observed while it runs as written
guards.py       the values of Python that a step reads; whether they are still the same
state.py        variables before and after a step, and how much two runs of it differ
hoister.py      what the rewritten script calls: as written, on all devices, or both to compare
imports.py      the script, and modules of its own folder when they are imported, rewritten
"""

from __future__ import annotations

from evener.launch.hoisting.hoister import Hoister
from evener.launch.hoisting.imports import hoisted

__all__ = ["Hoister", "hoisted"]
