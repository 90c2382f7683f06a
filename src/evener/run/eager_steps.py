"""Eager training steps, read from the source: the lines that `evener run` makes a function of.

All tools tell it by this module: the notes of a run, the doctor, audits, plans and estimates.
"""

from __future__ import annotations

import ast
import linecache
import re
from dataclasses import dataclass

from evener.run.liveness import SyntaxTree, last_name
from evener.run.regions import hoist_steps

_TAPE = "GradientTape"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def advice_for(source: str, line: int, *, is_traced: bool = False) -> str | None:
    r"""Return how a training step can run on all devices, or None if it is not a training step.

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
    imports = (alias for node in module.every(ast.Import) for alias in node.names)
    names = (each.asname or each.name for each in imports if each.name == "tensorflow")
    tf = next(names, "tf")
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
    tapes = [name for name in module.every(ast.Name, ast.Attribute) if last_name(name) == _TAPE]
    holding = {outer for tape in tapes for outer in module.around(tape)}
    covering = [
        statement
        for statement in module.every(*types)
        if statement in holding and isinstance(statement, ast.stmt)
        if statement.lineno <= line <= (statement.end_lineno or 0)
    ]
    return max(covering, key=lambda statement: statement.lineno, default=None)


NOT_FOLLOWED = "tf_keras, whose layers and optimizers are not followed"
"""What prevents a step that calls Keras 2; ends a clause."""

_AT_LINE = re.compile(r"(.+):(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerStep:
    """Training step that no `tf.function` traces."""

    # First and last line of the function that `evener run` makes of it; None if something prevents
    # it
    span: tuple[int, int] | None
    obstacle: str  # Line and reason that prevent it; empty if nothing is known to
    advice: str  # Change of the source by which all devices compute it

    def __str__(self) -> str:
        if self.span is not None:
            first, last = self.span
            made = f"`evener run` makes a function of lines {first} to {last}"
            return f"{made}, and all devices compute it"
        because = f": {self.obstacle}" if self.obstacle else ""
        return f"`evener run` leaves the step on one device{because}"

    @property
    def change(self) -> str:
        return self.advice.removesuffix(", and all devices compute it")

    @property
    def fix(self) -> str:
        if self.span is None:
            return f"{self.change}, and start it by `evener run`"
        return f"start it unchanged by `evener run`; or {self.change}, and use a strategy"


def prevents(line: int | str, reason: str) -> str:
    """Return the clause on a line that keeps a step from all devices.

    >>> prevents(12, "it may use any name")
    'line 12 prevents more: it may use any name'
    """
    name = f"line {line}" if isinstance(line, int) else line
    return f"{name} prevents more: {reason}"


def eager_step_of(source: str, line: int) -> EagerStep | None:
    r"""Return the eager training step at a line, or None if it is not a training step.

    Example:
        >>> loop = "for x in data:\n  with GradientTape() as t:\n    y = f(x)\n  apply(t)\n"
        >>> eager_step_of(loop, 4).advice
        'make a function of lines 2 to 4, with @tf.function above it, and all devices compute it'
    """
    advice = advice_for(source, line)
    if advice is None:
        return None
    try:
        found = hoist_steps(source, "")
    except (SyntaxError, ValueError, RecursionError):
        return EagerStep(span=None, obstacle="", advice=advice)
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        if any(name.partition(".")[0] == "tf_keras" for name in names):
            obstacle = prevents(getattr(node, "lineno", 0), f"it imports {NOT_FOLLOWED}")
            return EagerStep(span=None, obstacle=obstacle, advice=advice)
    spans = [(each.first, each.last) for each in found.regions if each.first <= line <= each.last]
    if spans:
        # The largest region that holds the line is the first to be tried.
        largest = max(spans, key=lambda span: span[1] - span[0])
        return EagerStep(span=largest, obstacle="", advice=advice)
    before = [obstacle for obstacle in found.obstacles if obstacle.line <= line]
    text = prevents(before[-1].line, before[-1].reason) if before else ""
    return EagerStep(span=None, obstacle=text, advice=advice)


def eager_step_at(place: str) -> EagerStep | None:
    match = _AT_LINE.fullmatch(place)
    if match is None:
        return None
    source = "".join(linecache.getlines(match[1]))
    return eager_step_of(source, int(match[2])) if source else None
