"""The statements of a training step that runs eagerly: from the tape to the update.

::

    x = normalize(x)               ─┐
    with tf.GradientTape() as tape: │ ─┐
        loss = ...                  │  │ ─┐
    gradients = tape.gradient(...)  │  │  │ forward and gradients
    optimizer.apply_gradients(...)  │  │ the step
    metric.update_state(...)       ─┘ with what is around it

A region that turns out not to be hoistable leaves the smaller one in it.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evener.analysis.hoisting.deferred import can_defer, deferred_in, without_deferred
from evener.analysis.hoisting.liveness import Liveness
from evener.analysis.hoisting.names import loads_in, names_of
from evener.analysis.hoisting.statements import (
    Obstacle,
    is_tape,
    is_update,
    obstacle_in,
    takes_gradient,
    tapes_in,
)

_BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Statements of a block that can be a function.

    Args:
        number: Index in the module.
        first: The line of its first statement.
        last: The line of its last.
        parameters: Names that it reads from outside.
        results: Names that it binds and that are read later.
        returns: Whether its last statement returns a value.
        in_arithmetic: Parameters that are used otherwise than as an argument of a call.
        shown: Names that statements read that run behind it, though they are in it.
        outside_shown: Names of them that the region itself neither reads nor binds.
        deferred: The first and last lines of these statements.
        end_of_block: The last line of the block that it is in.
    """

    number: int
    first: int
    last: int
    parameters: tuple[str, ...]
    results: tuple[str, ...]
    returns: bool
    in_arithmetic: frozenset[str]
    shown: frozenset[str]
    outside_shown: tuple[str, ...]
    deferred: tuple[tuple[int, int], ...]
    end_of_block: int


Span = tuple[int, int]
"""The indices of the first and the last statement of a region in its block."""


def spans_of(block: Sequence[ast.stmt]) -> Iterator[list[Span]]:
    """Yield the regions of a block, each with the smaller ones in it, the largest first."""
    for first, last in _runs(block):
        step = _step_in(block, first, last)
        if step is None:
            continue
        spans = [_grown(block, step, (first, last)), step, *_gradients_in(block, step)]
        yield list(dict.fromkeys(spans))


def obstacles_of(block: Sequence[ast.stmt]) -> Iterator[Obstacle]:
    """Yield what prevents the statements of a step in a block from being hoisted together."""
    tapes = [index for index, statement in enumerate(block) if is_tape(statement)]
    if not tapes:
        return
    behind = [
        i for i, s in enumerate(block) if i > tapes[0] and (is_update(s) or takes_gradient(s))
    ]
    fresh: set[str] = set()
    for statement in block[tapes[0] : max(behind, default=tapes[0]) + 1]:
        found = obstacle_in(statement, fresh)
        if found is not None:
            yield found
        fresh |= names_of([statement]).bound


def region_of(
    block: Sequence[ast.stmt], span: Span, liveness: Liveness, bound: set[str], number: int
) -> Region | None:
    """Return a region, or None if it leaves a tape behind that is used later.

    Args:
        block: The block.
        span: The indices of its statements.
        liveness: The uses of names in the module.
        bound: All names that something in the module binds.
        number: Its number.
    """
    first, last = span
    statements = block[first : last + 1]
    final = statements[-1]
    if not can_defer(statements):
        return None
    shown = {load.id for statement in deferred_in(statements) for load in loads_in(statement)}
    names = names_of(without_deferred(statements))
    results = sorted(
        name
        for name in names.bound
        if name in names.certain or name not in names.deleted
        if name in shown
        or (name in names.read and liveness.is_carried(name, block, first, last))
        or liveness.is_read_after(name, block, first, last)
    )
    tapes = {name for statement in statements for name in tapes_in(statement)}
    if tapes & set(results):
        return None
    flowing = {name for name in results if name not in names.certain}
    read = {name for name in names.read if name in bound or name not in _BUILTINS}
    parameters = sorted((read & bound) | flowing)
    return Region(
        number=number,
        first=statements[0].lineno,
        last=final.end_lineno or final.lineno,
        parameters=tuple(parameters),
        results=tuple(results),
        returns=isinstance(final, ast.Return),
        in_arithmetic=frozenset(_in_arithmetic(statements)),
        shown=frozenset(shown),
        end_of_block=block[-1].end_lineno or block[-1].lineno,
        outside_shown=tuple(sorted((shown & bound) - names.bound - set(parameters))),
        deferred=tuple(
            (statement.lineno, statement.end_lineno or statement.lineno)
            for statement in deferred_in(statements)
        ),
    )


def _runs(block: Sequence[ast.stmt]) -> Iterator[Span]:
    """Yield the longest runs of statements that may be hoisted; a run may end with a return."""
    first = 0
    fresh = set[str]()
    for index, statement in enumerate(block):
        if obstacle_in(statement, fresh) is None:
            fresh |= names_of([statement]).bound
            continue
        if isinstance(statement, ast.Return) and statement.value is not None:
            value = ast.copy_location(ast.Expr(statement.value), statement)
            if obstacle_in(value, fresh) is None:
                yield first, index
                return
        if index > first:
            yield first, index - 1
        first, fresh = index + 1, set[str]()
    if len(block) > first:
        yield first, len(block) - 1


def _step_in(block: Sequence[ast.stmt], first: int, last: int) -> Span | None:
    """Return the step in a run: from the first tape, or call for gradients, to the update."""
    indices = range(first, last + 1)
    ends = [i for i in indices if is_update(block[i]) or takes_gradient(block[i])]
    tapes = [i for i in indices if is_tape(block[i])]
    if not ends:
        return None
    if tapes:
        end = max(ends[-1], tapes[-1])
        while end < last and isinstance(block[end + 1], ast.Delete):
            end += 1  # `del tape`: it cannot be given to what comes behind
        return (tapes[0], end) if ends[-1] >= tapes[0] else None
    # The gradients come from a function of the program.
    used = {load.id for i in ends if is_update(block[i]) for load in loads_in(block[i])}
    given = [
        i
        for i in range(first, ends[-1])
        if _is_call(block[i]) and names_of([block[i]]).bound & used and not takes_gradient(block[i])
    ]
    return (given[0], ends[-1]) if given else None


def _is_call(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)


def _grown(block: Sequence[ast.stmt], step: Span, run: Span) -> Span:
    """Return a step with the statements around it that also compute."""
    first, last = step
    while first > run[0] and _prepares(block[first - 1]):
        first -= 1
    while last < run[1] and _follows(block[last + 1]):
        last += 1
    return first, last


def _prepares(statement: ast.stmt) -> bool:
    """Return whether a statement before a step computes something, and does not select a batch."""
    if not isinstance(statement, ast.Assign) or isinstance(statement.value, ast.Constant):
        return False
    selects = (node for node in ast.walk(statement.value) if isinstance(node, ast.Subscript))
    return not any(loads_in(node.slice) and list(loads_in(node.slice)) for node in selects)


def _follows(statement: ast.stmt) -> bool:
    """Return whether a statement behind a step computes something, or returns it."""
    if isinstance(statement, ast.Return):
        return True
    if isinstance(statement, ast.Assign):
        return _is_call(statement)
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
        return False
    function = statement.value.func
    if isinstance(function, ast.Attribute):
        return function.attr == "update_state"
    return bool(statement.value.args)


def _gradients_in(block: Sequence[ast.stmt], step: Span) -> Iterator[Span]:
    """Yield a step up to its last gradients, if updates follow."""
    first, last = step
    ends = [i for i in range(first, last + 1) if takes_gradient(block[i])]
    if ends and ends[-1] < last and is_tape(block[first]):
        yield first, ends[-1]


def _in_arithmetic(statements: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield names that are used otherwise than as an argument, or for their shape."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    harmless: set[ast.AST] = set()
    for node in nodes:
        if isinstance(node, ast.Call):
            harmless.update(node.args)
        elif isinstance(node, ast.keyword) or (
            isinstance(node, ast.Attribute) and node.attr in ("shape", "dtype")
        ):
            harmless.add(node.value)
    for node in nodes:
        if isinstance(node, ast.Name) and node not in harmless:
            yield node.id
