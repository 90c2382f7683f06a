"""Edits that replace a removed name by its exact successor, where it is used or imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from evener.analysis import Module, Program
from evener.analysis.api import public
from evener.analysis.api.exact import NAMES, POSITIONAL
from evener.doctor.edit import Edit, end_of, replaced, start_of, text_between
from evener.doctor.queries.removed_names import Missing, imported

_FROM = re.compile(r"from[ \t]+([\w.]+)[ \t]")


def edits_of_name(program: Program, used: Missing) -> tuple[Edit, ...]:
    """Return the edits that replace a name, or its import; empty if none are certain."""
    if _has_ambiguous_calls(program, used.name):
        return ()
    if isinstance(used.node, ast.Attribute):
        return _edits_of_attribute(program, used.module, used.node)
    if isinstance(used.node, ast.ImportFrom):
        return _edits_of_import(program, used.module, used.node)
    return ()


def _has_ambiguous_calls(program: Program, name: str) -> bool:
    """Return whether a class is called with arguments by position that changed their meaning."""
    last = name.rpartition(".")[2]
    return last in POSITIONAL and any(
        len(call.node.args) > POSITIONAL[last]
        or any(isinstance(value, ast.Starred) for value in call.node.args)
        for call in program.calls(f"keras.layers.{last}")
    )


def _successor(full: str) -> str:
    """Return the exact successor of a full name, in the package it is written with, or ``""``.

    >>> _successor("tensorflow.keras.layers.core.Dense"), _successor("tensorflow.div")
    ('tensorflow.keras.layers.Dense', '')
    """
    short = public.shown(full)
    if short.startswith("tf.keras."):
        new = NAMES.get(short.removeprefix("tf."))
        return f"tensorflow.{new}" if new else ""
    new = NAMES.get(short, "")
    return new.replace("tf.", "tensorflow.", 1) if new.startswith("tf.") else new


def _edits_of_attribute(program: Program, module: Module, node: ast.Attribute) -> tuple[Edit, ...]:
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute):
        names = program.written_names(module, inner)
        new = _successor(next(iter(names))) if len(names) == 1 else ""
        if new:
            return _with_root(program, module, inner, new)
        inner = inner.value
    return ()


def _with_root(program: Program, module: Module, node: ast.Attribute, new: str) -> tuple[Edit, ...]:
    """Return the edit that writes a full name by the name that the expression begins with."""
    root: ast.expr = node
    while isinstance(root, ast.Attribute):
        root = root.value
    bases = program.written_names(module, root)
    base = next(iter(bases)) if len(bases) == 1 else ""
    if not isinstance(root, ast.Name) or not base or not new.startswith(f"{base}."):
        return ()
    written = text_between(module, start_of(node), end_of(node))
    # A name over several lines may hold comments.
    if written != ast.unparse(node):
        return ()
    return (replaced(module, start_of(node), end_of(node), root.id + new[len(base) :]),)


# ---- imports


def _edits_of_import(program: Program, module: Module, node: ast.ImportFrom) -> tuple[Edit, ...]:
    targets = []
    for alias, full in zip(node.names, imported(node), strict=False):
        is_module = alias.name != "*" and _is_moved_module(program, module, alias, full)
        new = _successor(full) or (_module_successor(full) if is_module else "")
        if not new or not public.is_imported(new) or public.missing(new):
            return ()
        targets.append((alias, *new.rsplit(".", 1)))
    match = _FROM.match(text_between(module, start_of(node), end_of(node)))
    parents = {parent for _, parent, _ in targets}
    if match is None or match.group(1) != node.module or len(parents) != 1:
        return ()
    line, column = start_of(node)
    start = (line, column + match.start(1))
    end = (line, column + match.end(1))
    edits = [replaced(module, start, end, parents.pop())]
    for alias, _, last in targets:
        if alias.name != last:
            text = f"{last} as {alias.asname or alias.name}"
            edits.append(replaced(module, start_of(alias), end_of(alias), text))
    return tuple(edits)


def _module_successor(full: str) -> str:
    """Return the module that all known names of a removed module are in now, or ``""``."""
    short = public.shown(full)
    in_keras = short.removeprefix("tf.") if short.startswith("tf.keras.") else short
    parents = {
        new.rpartition(".")[0]
        for old, new in NAMES.items()
        if old.rpartition(".")[0] == in_keras and old.rpartition(".")[2] == new.rpartition(".")[2]
    }
    if len(parents) != 1 or not in_keras.startswith("keras."):
        return ""
    return parents.pop() if in_keras == short else f"tensorflow.{parents.pop()}"


def _is_moved_module(program: Program, module: Module, alias: ast.alias, full: str) -> bool:
    """Return whether all that is used of a module has an exact successor of the same name."""
    name = alias.asname or alias.name
    new = _module_successor(full)
    if not new or _is_taken_elsewhere(program, module, name) or _is_bound_again(module, name):
        return False
    for use in module.every(ast.Name):
        if use.id != name:
            continue
        outer = module.parents[use]
        if not isinstance(outer, ast.Attribute):
            return False
        if _successor(f"{full}.{outer.attr}") != f"{new}.{outer.attr}":
            return False
    return True


def _is_taken_elsewhere(program: Program, module: Module, name: str) -> bool:
    """Return whether another module may take a name out of this one."""
    return any(
        where is not module and any(alias.name in (name, "*") for alias in node.names)
        for where, node in program.nodes(ast.ImportFrom)
    ) or any(
        where is not module and node.attr == name for where, node in program.nodes(ast.Attribute)
    )


def _is_bound_again(module: Module, name: str) -> bool:
    return len(list(_bindings(module, name))) != 1


def _bindings(module: Module, name: str) -> Iterator[ast.AST]:
    for node in module.every(ast.Import, ast.ImportFrom):
        for alias in node.names:
            if (alias.asname or alias.name.partition(".")[0]) == name:
                yield alias
    for node in module.every(ast.arg):
        if node.arg == name:
            yield node
    for node in module.every(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
        if node.name == name:
            yield node
