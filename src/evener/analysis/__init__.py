"""Static analysis of a training program: its source code is parsed, and never run.

files.py            the script and the modules of its project
module.py           a file: its syntax tree, with the parent of each node
location.py      a line of a file
binding.py          what binds a name
scope.py            scopes, and the bindings that reach a use
qualified_name.py   one full name for each object of the libraries
api/                the public names of TensorFlow and Keras, and removed ones
value.py, call.py   a value's origin; a call, and the arguments of parameters
kinds.py            model, layer, strategy, dataset, ... and what gives them
interface.py        what the following ask one another
dataflow.py         the expressions that a value comes from
classes.py          classes, their bases and attributes
call_graph.py       the functions that a call leads to
kind_inference.py   the kinds of an expression
context.py          what surrounds a line when it runs: scopes, replicas, loops
execution_order.py  which line runs first
memo.py             recursion-safe memo
program.py          the semantic model of the whole program
hoisting/           eager steps, rewritten into functions
"""

from __future__ import annotations

from evener.analysis.call import Call, Site, argument, is_method
from evener.analysis.context import Context, Loop
from evener.analysis.dataflow import returns_of
from evener.analysis.execution_order import ExecutionOrder
from evener.analysis.files import Unread
from evener.analysis.kinds import Kind
from evener.analysis.location import Location
from evener.analysis.module import FUNCTIONS, Function, Module, last_name, module_of, own_nodes
from evener.analysis.program import Program, read_program
from evener.analysis.value import Value

__all__ = [
    "FUNCTIONS",
    "Call",
    "Context",
    "ExecutionOrder",
    "Function",
    "Kind",
    "Location",
    "Loop",
    "Module",
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
