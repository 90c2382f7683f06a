"""Advice on how to trace a training step that runs eagerly, in the script's own names.

It follows from the source text only; nothing is changed.
"""

from __future__ import annotations

import ast

from evener.analysis.hoisting.syntax_tree import SyntaxTree

_TAPE = "GradientTape"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def advice_for(source: str, line: int, *, is_traced: bool = False) -> str | None:
    r"""Return how a training step can run on all devices, or None if it is not a training step.

    Args:
        source: The text of the script.
        line: The line that applies the gradients.
        is_traced: Whether that line is in a `tf.function` that was called without a batch.

    Example:
        >>> step = "def step(x):\n  with GradientTape() as t: pass\n  apply(t)\n"
        >>> advice_for(step, 3)
        'put @tf.function above line 1, def step, and all devices compute it'
        >>> loop = "for x in data:\n  with GradientTape() as t: pass\n  apply(t)\n"
        >>> advice_for(loop, 3)
        'make a function of lines 2 to 3, with @tf.function above it, and all devices compute it'
    """
    try:
        module = SyntaxTree(source)
    except (SyntaxError, ValueError, RecursionError):
        # Python reports it when the script runs.
        module = SyntaxTree("")
    loop = _innermost(module, line, ast.For, ast.While)
    function = _innermost(module, line, ast.FunctionDef, ast.AsyncFunctionDef)
    if is_traced:
        if loop is None and function is None:
            return None  # it applies gradients that were accumulated elsewhere
        return (
            "give the traced function the batch as an argument, and call it from the loop over the "
            "data; then all devices compute it"
        )
    tf = _alias_of_tensorflow(module)
    if isinstance(loop, ast.For | ast.While) and (
        not isinstance(function, Function) or loop.lineno > function.lineno
    ):
        first, last = loop.body[0].lineno, loop.body[-1].end_lineno
        what = f"make a function of lines {first} to {last}, with @{tf}.function above it"
    elif isinstance(function, Function):
        above = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        what = f"put @{tf}.function above line {above}, def {function.name}"
    else:
        what = f"make a function of the step, with @{tf}.function above it"
    return f"{what}, and all devices compute it"


def _innermost(module: SyntaxTree, line: int, *types: type[ast.AST]) -> ast.AST | None:
    """Return the last statement of some types that covers a line and holds a tape."""
    tapes = [
        name
        for name in module.every(ast.Name, ast.Attribute)
        if getattr(name, "id", getattr(name, "attr", "")) == _TAPE
    ]
    holding = {outer for tape in tapes for outer in module.around(tape)}
    covering = [
        statement
        for statement in module.every(*types)
        if statement in holding and isinstance(statement, ast.stmt)
        if statement.lineno <= line <= (statement.end_lineno or 0)
    ]
    return max(covering, key=lambda statement: statement.lineno, default=None)


def _alias_of_tensorflow(module: SyntaxTree) -> str:
    for node in module.every(ast.Import):
        for alias in node.names:
            if alias.name == "tensorflow":
                return alias.asname or "tensorflow"
    return "tf"
