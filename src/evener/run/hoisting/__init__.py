"""Training steps that run eagerly become functions on all devices, with the values of plain Python.

values.py       arguments and results as flat tensors, with what stays Python's beside them
expressions.py  what Python computes from numbers that the step is given
symbolic.py     such numbers as arguments of a graph, while it is traced
code.py         which code a step runs, and what it calls: observed while it runs as written
checks.py       comparisons of what objects of Python hold with what they held
identities.py   thousands of checks at once, by identity
guards.py       the values of Python that a step reads; whether they are still the same
reads.py        what a step reads, found by what was observed of it
graph.py        which operations its graph may have
variant.py      a step traced for one set of values of Python
step.py         a region of the program, and what became of it
state.py        variables before and after a step, and how much two runs of it differ
comparing.py    a step computed both ways from the same state
hoister.py      what the rewritten script calls: as written, on all devices, or both to compare
imports.py      the script, and modules of its own folder when they are imported, rewritten
"""

from __future__ import annotations

from evener.run.hoisting.hoister import Hoister
from evener.run.hoisting.imports import hoisted

__all__ = ["Hoister", "hoisted"]
