"""Edits that replace removed methods, attributes and arguments by their exact successors."""

from __future__ import annotations

import ast

from evener.analysis import Call, Module, Program
from evener.analysis.api.exact import ARGUMENTS, GENERATORS, MEMBERS, Dropped, Renamed
from evener.analysis.api.successors import GoneArgument, GoneMember
from evener.doctor.edit import (
    Edit,
    inserted,
    renamed_argument,
    renamed_attribute,
    start_of,
    without_argument,
)

# Of a learning rate: what variables of Keras 2 and of Keras 3 both have.
_OF_RATE = ("assign", "numpy")
_OF_WEIGHT = ("name", "shape", "dtype", "initializer")


def edits_of_member(row: GoneMember, module: Module, node: ast.Attribute) -> tuple[Edit, ...]:
    """Return the edits that replace a method or attribute; empty if none are certain."""
    outer = module.parents[node]
    if (row.kind, row.name) == ("optimizer", "lr"):
        is_called = isinstance(outer, ast.Call) and outer.func is node
        if is_called or (isinstance(outer, ast.Attribute) and outer.attr not in _OF_RATE):
            return ()
        return renamed_attribute(module, node, "learning_rate")
    if not isinstance(outer, ast.Call) or outer.func is not node:
        return ()
    if row.name in GENERATORS:
        return _edits_of_generator(module, node, outer)
    new = MEMBERS.get((row.kind, row.name))
    return renamed_attribute(module, node, new) if new else ()


def _edits_of_generator(module: Module, node: ast.Attribute, call: ast.Call) -> tuple[Edit, ...]:
    new, names = GENERATORS[node.attr]
    # Behind the generator the two take their arguments in another order.
    if len(call.args) > 1 or any(isinstance(value, ast.Starred) for value in call.args):
        return ()
    if any(keyword.arg not in names for keyword in call.keywords):
        return ()
    edits = renamed_attribute(module, node, new)
    for keyword in call.keywords:
        if keyword.arg == "generator":
            renamed = renamed_argument(module, keyword, "x")
            edits = (*edits, *renamed) if renamed else ()
    return edits


def edits_of_argument(program: Program, row: GoneArgument, call: Call) -> tuple[Edit, ...]:
    """Return the edits that rename or delete an argument; empty if none are certain."""
    known = ARGUMENTS.get((row.called, row.name))
    node = call.node
    if known is None or any(keyword.arg is None for keyword in node.keywords):
        return ()
    keyword = next(keyword for keyword in node.keywords if keyword.arg == row.name)
    if isinstance(known, Dropped):
        return _edits_without(program, call, keyword, known)
    return _edits_renamed(call.module, node, keyword, known)


def _edits_without(
    program: Program, call: Call, keyword: ast.keyword, known: Dropped
) -> tuple[Edit, ...]:
    # What is computed for an argument might be needed for itself.
    if not isinstance(keyword.value, ast.Constant | ast.Name):
        return ()
    if known.values is not None:
        value = program.constant(call.module, keyword.value)
        is_none = isinstance(keyword.value, ast.Constant) and keyword.value.value is None
        same = [
            known for known in known.values if known == value and (value is not None or is_none)
        ]
        if not same:
            return ()
    return without_argument(call.module, call.node, keyword)


def _edits_renamed(
    module: Module, node: ast.Call, keyword: ast.keyword, known: Renamed
) -> tuple[Edit, ...]:
    is_given = any(other.arg == known.new for other in node.keywords)
    is_starred = any(isinstance(value, ast.Starred) for value in node.args)
    if is_given or is_starred or len(node.args) > known.position:
        return ()
    return renamed_argument(module, keyword, known.new)


def edits_of_weight(call: Call) -> tuple[Edit, ...]:
    """Return the edits that give the first arguments of ``add_weight`` by name."""
    args = call.node.args
    first = args[0] if args else None
    if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
        return ()
    names = _OF_WEIGHT[: len(args)]
    given = {keyword.arg for keyword in call.node.keywords}
    if len(args) > len(_OF_WEIGHT) or None in given or given & set(names):
        return ()
    if any(isinstance(value, ast.Starred) for value in args):
        return ()
    return tuple(
        inserted(call.module, start_of(value), f"{name}=")
        for name, value in zip(names, args, strict=True)
    )
