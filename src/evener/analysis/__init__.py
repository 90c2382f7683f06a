"""Static analysis of a training program: its source code is parsed, and never run.

files.py            the script and the modules of its project
module.py           a file: its syntax tree, with the parent of each node
place.py            a line of a file
binding.py          what binds a name
scope.py            scopes, and the bindings that reach a use
qualified_name.py   one full name for each object of the libraries
api/                the public names of TensorFlow and Keras, and removed ones
memo.py             recursion-safe memo
dataflow.py         the expressions that a value comes from
classes.py          classes, their bases and attributes
call_graph.py       calls, and the functions that they lead to
kinds.py            kind inference: model, layer, strategy, dataset, ...
context.py          what surrounds a line when it runs: scopes, replicas, loops
execution_order.py  which line runs first
program.py          the semantic model of the whole program
"""

from __future__ import annotations

from evener.analysis.call_graph import Call, Site, argument, is_method
from evener.analysis.context import Context, Loop
from evener.analysis.dataflow import Value, returns_of
from evener.analysis.execution_order import ExecutionOrder
from evener.analysis.files import Unread
from evener.analysis.kinds import Kind
from evener.analysis.module import FUNCTIONS, Function, Module, last_name, module_of, own_nodes
from evener.analysis.place import Place
from evener.analysis.program import Program, read_program

__all__ = [
    "FUNCTIONS",
    "Call",
    "Context",
    "ExecutionOrder",
    "Function",
    "Kind",
    "Loop",
    "Module",
    "Place",
    "Program",
    "Site",
    "Unread",
    "Value",
    "argument",
    "is_method",
    "last_name",
    "module_of",
    "own_nodes",
    "read_program",
    "returns_of",
]
