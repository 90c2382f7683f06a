"""A training program as its text tells it: read by the syntax tree, never run.

reading.py   the script and the modules of its project
module.py    a file: its tree, and what is around each node
scopes.py    what names are bound to
names.py     one name for each thing of the libraries
circles.py   answers that need each other
values.py    where a value comes from
classes.py   classes, their bases and attributes
calls.py     who calls which function, with what
decorations.py  what decorators of the program put around functions
stored.py    what is put into lists and dicts later
kinds.py     what kind of thing an expression gives
program.py   all of it together
around.py    what is around a line when it runs
order.py     which line runs first
"""

from __future__ import annotations

from evener.doctor.program.around import Around, Loop
from evener.doctor.program.calls import Call, Site, argument, is_method
from evener.doctor.program.kinds import Kind
from evener.doctor.program.module import FUNCTIONS, Function, Module, last_name, own_nodes
from evener.doctor.program.order import Order
from evener.doctor.program.place import Place
from evener.doctor.program.program import Program, read_program
from evener.doctor.program.reading import Unread
from evener.doctor.program.values import Value, returns_of

__all__ = [
    "FUNCTIONS",
    "Around",
    "Call",
    "Function",
    "Kind",
    "Loop",
    "Module",
    "Order",
    "Place",
    "Program",
    "Site",
    "Unread",
    "Value",
    "argument",
    "is_method",
    "last_name",
    "own_nodes",
    "read_program",
    "returns_of",
]
