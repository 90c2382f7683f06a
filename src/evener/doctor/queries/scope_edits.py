"""Edits that put a statement in ``with strategy.scope():``, where that is all there is to do."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import FUNCTIONS, Kind, Module, Program
from evener.doctor.edit import Edit, inserted
from evener.doctor.queries.strategies import strategies

# What has variables. Created outside, it would stay outside.
_HELD = {Kind.MODEL, Kind.LAYER, Kind.OPTIMIZER, Kind.METRIC, Kind.VARIABLE, Kind.CHECKPOINT}
# Calls that create all variables of a model at once.
_BUILT = ("keras.applications.", "keras.models.load_model", "keras.saving.load_model")
_INPUTS = ("keras.Input", "keras.layers.Input", "keras.layers.InputLayer")
_SHAPES = ("input_shape", "input_dim")
# Methods that may create variables of an object.
_BUILDS = ("build", "add", "pop")


def edits_of_model(program: Program, module: Module, call: ast.Call) -> tuple[Edit, ...]:
    """Return the edits that create a model in the scope; empty if they might not be enough."""
    statement = _assignment_of(module, call)
    if statement is None or not _is_built_whole(program, module, call):
        return ()
    if not _is_closed(program, module, call, frozenset()):
        return ()
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or _is_built_later(program, module, target.id):
        return ()
    return _wrapped(program, module, statement)


def edits_of_optimizer(program: Program, module: Module, call: ast.Call) -> tuple[Edit, ...]:
    """Return the edits that create an optimizer in the scope; empty if none are certain."""
    if _is_given(program, module, call, _HELD):
        return ()
    statement: ast.stmt | None = _assignment_of(module, call)
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
        if not isinstance(target, ast.Name) or _is_built_later(program, module, target.id):
            return ()
        return _wrapped(program, module, statement)
    # An argument of compile: all of compile belongs in the scope.
    outer = module.parents[module.parents[call]]
    compiling = outer if isinstance(outer, ast.Call) else module.parents[call]
    return edits_of_compile(program, module, compiling)


def edits_of_compile(program: Program, module: Module, call: ast.AST) -> tuple[Edit, ...]:
    """Return the edits that compile a model in the scope; empty if none are certain."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return ()
    statement = module.parents[call]
    if call.func.attr != "compile" or not isinstance(statement, ast.Expr):
        return ()
    if _is_given(program, module, call, _HELD - {Kind.MODEL}):
        return ()
    return _wrapped(program, module, statement)


def _assignment_of(module: Module, call: ast.Call) -> ast.Assign | None:
    statement = module.parents[call]
    is_one = isinstance(statement, ast.Assign) and len(statement.targets) == 1
    return statement if isinstance(statement, ast.Assign) and is_one else None


def _is_given(program: Program, module: Module, call: ast.Call, kinds: set[Kind]) -> bool:
    """Return whether an argument is, by its name, an object of some kinds."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(
        isinstance(node, ast.Name | ast.Attribute) and program.kinds(module, node) & kinds
        for value in given
        for node in ast.walk(value)
    )


# ---- what a call creates


def _is_built_whole(program: Program, module: Module, call: ast.Call) -> bool:
    """Return whether the call itself creates all variables, not the first batch."""
    if program.name_of(module, call.func).startswith(_BUILT):
        return True
    nodes: list[tuple[Module, ast.AST]] = [(module, call), *program.targets(module, call)]
    return any(
        isinstance(inner, ast.Call)
        and (
            program.name_of(where, inner.func) in _INPUTS
            or any(keyword.arg in _SHAPES for keyword in inner.keywords)
        )
        for where, node in nodes
        for inner in ast.walk(node)
    )


def _is_closed(program: Program, module: Module, node: ast.AST, seen: frozenset[ast.AST]) -> bool:
    """Return whether all that an expression or function uses is created in it, or is constant."""
    own = _bound_in(node)
    for inner in ast.walk(node):
        if isinstance(inner, ast.ClassDef | ast.Global | ast.Nonlocal):
            return False
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
            if inner.id not in own and not _is_fixed(program, module, inner):
                return False
        if isinstance(inner, ast.Call):
            for where, target in program.targets(module, inner):
                if not isinstance(target, ast.FunctionDef):
                    return False
                is_known = target in seen or target is node
                if not is_known and not _is_closed(program, where, target, seen | {node}):
                    return False
    return True


def _bound_in(node: ast.AST) -> set[str]:
    names = {
        inner.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
    }
    return names | {inner.arg for inner in ast.walk(node) if isinstance(inner, ast.arg)}


def _is_fixed(program: Program, module: Module, name: ast.Name) -> bool:
    """Return whether a name stands for a constant, a function, or a part of a library."""
    if program.constant(module, name) is not None:
        return True
    bindings = list(program.bindings(module, name))
    return all(
        binding.imported is not None or isinstance(binding.definition, ast.FunctionDef)
        for _, binding in bindings
    )


def _is_built_later(program: Program, module: Module, name: str) -> bool:
    """Return whether variables may be created outside of the scope after the object is."""
    return any(
        call.module is module
        and isinstance(owner, ast.Name)
        and owner.id == name
        and program.context.in_scope(module, call.node) is not True
        for call, owner in program.calls_of(*_BUILDS)
    )


# ---- the block


def _wrapped(program: Program, module: Module, statement: ast.stmt) -> tuple[Edit, ...]:
    """Return the edits that put a statement in the scope of the one strategy made before it."""
    strategy = _strategy_before(program, module, statement)
    if strategy is None or not _is_on_own_lines(module, statement):
        return ()
    if any(_is_over_lines(node) for node in ast.walk(statement)):
        return ()
    lines = module.source.split("\n")
    assert statement.end_lineno is not None
    indent = lines[statement.lineno - 1][: statement.col_offset]
    unit = "\t" if any(line.startswith("\t") for line in lines) else "    "
    first = f"{indent}with {strategy}.scope():\n{unit}"
    edits = [inserted(module, (statement.lineno, 0), first)]
    for number in range(statement.lineno + 1, statement.end_lineno + 1):
        if lines[number - 1].strip():
            edits.append(inserted(module, (number, 0), unit))
    return tuple(edits)


def _strategy_before(program: Program, module: Module, statement: ast.stmt) -> str | None:
    """Return the name of the only strategy, if the same block makes it above a statement."""
    made = strategies(program)
    if len(made) != 1 or made[0].call.module is not module:
        return None
    creation = _assignment_of(module, made[0].call.node)
    if creation is None or not isinstance(creation.targets[0], ast.Name):
        return None
    name = creation.targets[0].id
    block = next((block for block in _blocks(module.parents[statement]) if statement in block), [])
    if creation not in block or block.index(creation) > block.index(statement):
        return None
    return name if _is_bound_once(program, module, creation, name) else None


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            yield block


def _is_bound_once(program: Program, module: Module, creation: ast.Assign, name: str) -> bool:
    around = program.context.function(module, creation)
    scope = around if isinstance(around, FUNCTIONS) else module.tree
    stores = [
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
    ]
    return len(stores) == 1


def _is_on_own_lines(module: Module, statement: ast.stmt) -> bool:
    """Return whether nothing else is on the lines of a statement, apart from a comment."""
    lines = [line.encode() for line in module.source.split("\n")]
    assert statement.end_lineno is not None
    before = lines[statement.lineno - 1][: statement.col_offset]
    behind = lines[statement.end_lineno - 1][statement.end_col_offset :].strip()
    return not before.strip() and (not behind or behind.startswith(b"#"))


def _is_over_lines(node: ast.AST) -> bool:
    """Return whether a node is a string over several lines, which an indent would change."""
    is_text = isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )
    return is_text and getattr(node, "lineno", 0) != getattr(node, "end_lineno", 0)
