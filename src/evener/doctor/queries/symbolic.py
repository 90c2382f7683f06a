"""Symbolic tensors: what `keras.Input` gives, and what layers make of it."""

from __future__ import annotations

import ast

from evener.analysis import FUNCTIONS, Kind, Module, Program

_DEEPEST = 12
# Classes whose methods get real tensors, or symbols that TensorFlow's functions accept.
_COMPUTING = (Kind.LAYER, Kind.MODEL, Kind.LOSS, Kind.METRIC, Kind.OPTIMIZER)
_OF_KERAS = ("keras.ops.", "keras.layers.", "keras.backend.")
_MAKING = ("__init__", "build", "build_model", "make_model", "create_model")


def is_symbolic(program: Program, module: Module, node: ast.AST, depth: int = _DEEPEST) -> bool:
    """Return whether an expression is surely a tensor of a functional model that is being built."""
    if not depth:
        return False
    values = program.origins(module, node)
    return bool(values) and all(
        not any(step == "key" for step in value.steps)
        and _is_made_symbolic(program, value.module, value.node, depth - 1)
        for value in values
    )


def _is_made_symbolic(program: Program, module: Module, node: ast.AST, depth: int) -> bool:
    if isinstance(node, ast.BinOp):
        return any(is_symbolic(program, module, side, depth) for side in (node.left, node.right))
    if not isinstance(node, ast.Call) or is_in_computation(program, module, node):
        return False
    name = program.callee(module, node)
    if name == "keras.Input":
        return True
    is_layer = program.kinds(module, node.func) & {Kind.LAYER, Kind.MODEL}
    if not (is_layer or name.startswith(_OF_KERAS)) or not node.args:
        return False
    first = node.args[0]
    parts = first.elts if isinstance(first, ast.List | ast.Tuple) else [first]
    return any(is_symbolic(program, module, part, depth) for part in parts)


def is_in_computation(program: Program, module: Module, node: ast.AST) -> bool:
    """Return whether a node may run in a method of a layer, model, loss or metric.

    Keras calls these with tensors that TensorFlow's functions accept, whatever was given.
    """
    seen: set[ast.AST] = set()
    waiting = [(module, node)]
    while waiting:
        module, node = waiting.pop()
        function = program.context.function(module, node)
        if function is None or function in seen:
            continue
        seen.add(function)
        parent = module.parents.get(function)
        if isinstance(function, ast.Lambda) or _is_decorated(function):
            return True
        if isinstance(parent, ast.ClassDef) and function.name not in _MAKING:
            if program.kind_of_class(module, parent) in _COMPUTING:
                return True
        if isinstance(parent, FUNCTIONS):
            waiting.append((module, function))
        waiting += [(site.module, site.call) for site in program.call_sites(function)]
    return False


def _is_decorated(function: ast.AST) -> bool:
    return bool(getattr(function, "decorator_list", ()))
