"""Statements that a hoisted function may hold.

A statement may be hoisted if its only effects are the names that it binds and what the libraries do
to variables. What calls do is not known from the text: the run observes them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evener.analysis.hoisting.deferred import bound_by, is_deferrable
from evener.analysis.hoisting.syntax_tree import last_name

UPDATES = ("apply_gradients", "apply", "minimize", "assign_sub", "assign_add", "assign")
"""Methods that end a training step: of optimizers, and of variables."""
_TAPE = "GradientTape"
# Blocks that only say where or under which name their statements run, or that no tape records them.
_BLOCKS = frozenset(("device", "name_scope", "stop_recording"))
_GRADIENTS = ("gradient", "jacobian", "batch_jacobian")
# Of Python: what reads or changes more than its arguments.
_IMPURE = {
    **dict.fromkeys(("print", "input", "open", "breakpoint"), "it reads or writes outside"),
    **dict.fromkeys(("exec", "eval", "globals", "locals", "vars"), "it may use any name"),
    **dict.fromkeys(("next", "setattr", "delattr"), "it changes an object of Python"),
    "id": "it depends on the object, not on its value",
}
# Methods that give a number of a tensor to Python.
_HOST_READS = ("numpy", "item", "tolist", "__array__")
# Methods that change a container of Python. One that the step made itself may be changed.
_CHANGES = (
    *("append", "extend", "insert", "remove", "pop", "clear", "add", "discard", "popitem"),
    *("setdefault", "sort", "reverse", "appendleft", "popleft", "write", "writelines", "writerow"),
)
# By the names that everybody gives these modules; the run sees others.
_DRAWS = ("tf.random.", "np.random.", "numpy.random.", "random.", "time.")
_DRAWS_IN_GRAPHS = tuple(
    f"tf.random.{name}" for name in ("stateless_", "normal", "uniform", "truncated_normal")
)
_SIMPLE = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Assert, ast.Pass, ast.Raise)
_WORDS: dict[type[ast.stmt], str] = {
    ast.Try: "try",
    ast.FunctionDef: "def",
    ast.ClassDef: "class",
    ast.Import: "import",
    ast.ImportFrom: "import",
    ast.Global: "global",
    ast.Nonlocal: "nonlocal",
    ast.Return: "return",
    ast.Break: "break",
    ast.Continue: "continue",
    ast.With: "with",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """A line that prevents a step from being hoisted.

    Args:
        line: Its number.
        reason: A clause that ends "line 12 prevents more: ...".
    """

    line: int
    reason: str


def is_tape(node: ast.AST) -> bool:
    """Return whether a statement opens a gradient tape, or is a block around one and no update."""
    if not isinstance(node, ast.With) or _TAPE in _entered(node):
        return isinstance(node, ast.With)
    is_around = _is_block(node) and any(map(is_tape, node.body))
    return is_around and not any(map(is_update, ast.walk(node)))


def _is_block(node: ast.AST) -> bool:
    return isinstance(node, ast.With) and _entered(node) <= _BLOCKS


def _entered(node: ast.With) -> set[str | None]:
    """Return the names of the functions whose results a statement enters."""
    items = (item.context_expr for item in node.items)
    return {last_name(item.func) if isinstance(item, ast.Call) else None for item in items}


def tapes_in(node: ast.AST) -> Iterator[str]:
    """Yield the names of the tapes that a statement opens, itself or within."""
    for inner in ast.walk(node):
        if is_tape(inner) and isinstance(inner, ast.With):
            for item in inner.items:
                if isinstance(item.optional_vars, ast.Name):
                    yield item.optional_vars.id


def takes_gradient(node: ast.AST, tapes: set[str] | None = None) -> bool:
    """Return whether a statement asks a tape, or one with such a name, for gradients."""
    calls = [inner for inner in ast.walk(node) if _is_method(inner, _GRADIENTS)]
    return any(tapes is None or ast.unparse(call).partition(".")[0] in tapes for call in calls)


def is_update(node: ast.AST) -> bool:
    """Return whether a statement is a call that applies gradients, or changes a variable."""
    if isinstance(node, ast.Expr | ast.Assign):
        return _is_method(node.value, UPDATES)
    return isinstance(node, ast.For | ast.With) and any(is_update(inner) for inner in node.body)


def holds_step(node: ast.AST, before: set[str]) -> bool:
    """Return whether a statement with other statements in it holds a step of its own.

    What takes gradients of a tape among the names ``before`` is part of the step of that tape.
    """
    inner = [found for found in ast.walk(node) if found is not node]
    has_tape = any(map(is_tape, inner))
    if _is_block(node):
        return has_tape and any(map(is_update, inner))
    if has_tape or not any(_is_method(found, ("apply_gradients",)) for found in inner):
        return has_tape
    return not takes_gradient(node, before)


def obstacle_in(
    statement: ast.stmt, fresh: set[str], *, in_loop: bool = False, can_defer: bool = True
) -> Obstacle | None:
    """Return what prevents a statement from being hoisted, or None.

    Args:
        statement: The statement.
        fresh: Names that hoisted statements before it have bound: their lists may change.
        in_loop: Whether a loop around it is hoisted too.
        can_defer: Whether it may run behind the step, if it only shows values.
    """
    if can_defer and is_deferrable(statement):
        return None
    if isinstance(statement, ast.Delete):
        if all(isinstance(target, ast.Name) and target.id in fresh for target in statement.targets):
            return None
        return Obstacle(line=statement.lineno, reason="it deletes what the step did not make")
    is_with = is_tape(statement) or _is_block(statement)
    if is_with or isinstance(statement, ast.If | ast.For | ast.While):
        return _in_block(statement, fresh, in_loop=in_loop)
    if in_loop and isinstance(statement, ast.Break | ast.Continue):
        return None
    if not isinstance(statement, _SIMPLE):
        word = _WORDS.get(type(statement), type(statement).__name__.lower())
        return Obstacle(line=statement.lineno, reason=f"`{word}` cannot be a part of a graph")
    return _in_targets(statement) or _in_expressions(statement, fresh)


def _in_block(statement: ast.stmt, fresh: set[str], *, in_loop: bool) -> Obstacle | None:
    if not is_tape(statement) and holds_step(statement, fresh):
        return Obstacle(line=statement.lineno, reason="it holds the whole step")
    if isinstance(statement, ast.For) and not isinstance(statement.target, ast.Name | ast.Tuple):
        return Obstacle(line=statement.lineno, reason="it binds more than names")
    in_loop = in_loop or isinstance(statement, ast.For | ast.While)
    inner = set(fresh)
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            found = obstacle_in(
                child, inner, in_loop=in_loop, can_defer=isinstance(statement, ast.With)
            )
            inner |= bound_by(child)
        else:
            found = _in_expressions(child, fresh, line=statement.lineno)
        if found is not None:
            return found
    return None


def _in_targets(statement: ast.stmt) -> Obstacle | None:
    targets: Sequence[ast.AST] = (
        statement.targets
        if isinstance(statement, ast.Assign)
        else [statement.target]
        if isinstance(statement, ast.AugAssign | ast.AnnAssign)
        else []
    )
    for target in targets:
        for inner in ast.walk(target):
            if isinstance(inner, ast.Attribute | ast.Subscript) and isinstance(
                inner.ctx, ast.Store
            ):
                text = ast.unparse(inner)
                return Obstacle(line=inner.lineno, reason=f"it changes {text}, an object of Python")
    return None


def _in_expressions(node: ast.AST, fresh: set[str], line: int | None = None) -> Obstacle | None:
    for inner in ast.walk(node):
        reason = _reason(inner, fresh)
        if reason is not None:
            return Obstacle(line=getattr(inner, "lineno", line or 0), reason=reason)
    return None


def _reason(node: ast.AST, fresh: set[str]) -> str | None:
    if isinstance(node, ast.Yield | ast.YieldFrom | ast.Await):
        return "it waits for other code"
    if isinstance(node, ast.comprehension) and node.is_async:
        return "it waits for other code"
    if isinstance(node, ast.comprehension) and any(
        isinstance(part, ast.NamedExpr) for test in node.ifs for part in ast.walk(test)
    ):
        return "it binds a name within a comprehension"
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    if isinstance(function, ast.Name):
        if function.id == "super" and not node.args:
            return "it calls super()"
        if function.id in _IMPURE:
            return f"it calls {function.id}(): {_IMPURE[function.id]}"
    if isinstance(function, ast.Attribute):
        text = ast.unparse(function)
        if text.startswith(_DRAWS) and not text.startswith(_DRAWS_IN_GRAPHS):
            return f"{text}() draws numbers of its own in every call"
        if function.attr in _HOST_READS and not node.args:
            return f"{text}() gives a number of a tensor to Python"
        base = function.value
        if function.attr in _CHANGES and not (isinstance(base, ast.Name) and base.id in fresh):
            return f"{text}() changes an object of Python"
    return None


def _is_method(node: ast.AST, names: Sequence[str]) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in names
    )
