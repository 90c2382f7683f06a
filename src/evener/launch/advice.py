"""What makes a training step that runs eagerly a traced function, in the script's own names.

Read from the text alone, and nothing is changed.
"""

from __future__ import annotations

import ast

_TAPE = "GradientTape"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def advice_for(source: str, line: int, *, is_traced: bool = False) -> str | None:
    r"""Return what would let a training step run on all devices, or None if it is no step.

    Args:
        source: The text of the script.
        line: Where the step applies its gradients.
        is_traced: Whether that is in a `tf.function`, which was not called with a batch.

    Example:
        >>> step = "def step(x):\n  with GradientTape() as t: pass\n  apply(t)\n"
        >>> advice_for(step, 3)
        'put @tf.function above line 1, def step, and all devices compute it'
        >>> loop = "for x in data:\n  with GradientTape() as t: pass\n  apply(t)\n"
        >>> advice_for(loop, 3)
        'make a function of lines 2 to 3, with @tf.function above it, and all devices compute it'
    """
    tree = _parsed(source)
    around = [node for node in ast.walk(tree) if _covers(node, line) and _holds_tape(node)]
    functions = [node for node in around if isinstance(node, Function)]
    loops = [node for node in around if isinstance(node, ast.For | ast.While)]
    if is_traced:
        if not around:
            return None  # it applies what was added up elsewhere
        return (
            "give the traced function the batch as an argument, and call it from the loop over the "
            "data; then all devices compute it"
        )
    function = max(functions, key=lambda node: node.lineno, default=None)
    loop = max(loops, key=lambda node: node.lineno, default=None)
    tf = _alias_of_tensorflow(tree)
    if loop is not None and (function is None or loop.lineno > function.lineno):
        first, last = loop.body[0].lineno, loop.body[-1].end_lineno
        what = f"make a function of lines {first} to {last}, with @{tf}.function above it"
    elif function is not None:
        what = f"put @{tf}.function above line {_first_line(function)}, def {function.name}"
    else:
        what = f"make a function of the step, with @{tf}.function above it"
    return f"{what}, and all devices compute it"


def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        # Python will say it when the script runs.
        return ast.Module(body=[], type_ignores=[])


def _covers(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return first is not None and last is not None and first <= line <= last


def _holds_tape(node: ast.AST) -> bool:
    return any(
        (isinstance(one, ast.Name) and one.id == _TAPE)
        or (isinstance(one, ast.Attribute) and one.attr == _TAPE)
        for one in ast.walk(node)
    )


def _first_line(function: Function) -> int:
    return min([function.lineno, *(one.lineno for one in function.decorator_list)])


def _alias_of_tensorflow(tree: ast.AST) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "tensorflow":
                    return alias.asname or "tensorflow"
    return "tf"
