"""Eager steps: regions of a script that can become functions, with calls of a hook instead.

::

    x = normalize(x)               ─┐
    with tf.GradientTape() as tape: │ ─┐
        loss = ...                  │  │ ─┐
    gradients = tape.gradient(...)  │  │  │ forward and gradients
    optimizer.apply_gradients(...)  │  │ the step
    metric.update_state(...)       ─┘ with what is around it

    loss = step(x)            def region(x): loss = step(x); return (loss,)
    update(loss)       ──►    results = hook(3, region, lambda: (x,))
                              if results is None:
                                  with hook.as_written(3):
                                      loss = step(x)          the script's own statements
                              else:
                                  (loss,) = results
                              update(loss)

A statement may be hoisted if its only effects are the names that it binds and what the libraries do
to variables. What calls do is not known from the text: the run observes them. A region that turns
out not to be hoistable leaves the smaller one in it. All that is new has the lines of the region,
so that tracebacks name lines of the script.
"""

from __future__ import annotations

import ast
import builtins
import copy
import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from evener.run.liveness import (
    FUNCTIONS,
    Liveness,
    SyntaxTree,
    blocks_of,
    bound_name,
    can_defer,
    deferred_in,
    is_deferrable,
    last_name,
    loads_in,
    names_of,
    stores_in,
    without_deferred,
)

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
_WORDS = {"functiondef": "def", "classdef": "class", "importfrom": "import"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    line: int  # Its number
    reason: str  # A clause that ends "line 12 prevents more: ..."


def is_tape(node: ast.AST) -> bool:
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


def takes_gradient(node: ast.AST, tapes: set[str] | None = None) -> bool:
    calls = [inner for inner in ast.walk(node) if _is_method(inner, _GRADIENTS)]
    return any(tapes is None or ast.unparse(call).partition(".")[0] in tapes for call in calls)


def is_update(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr | ast.Assign):
        return _is_method(node.value, UPDATES)
    return isinstance(node, ast.For | ast.With) and any(is_update(inner) for inner in node.body)


def holds_step(node: ast.AST, before: set[str]) -> bool:
    """Return whether a statement with other statements in it holds a step of its own."""
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
    if can_defer and is_deferrable(statement):
        return None
    line = statement.lineno
    if isinstance(statement, ast.Delete):
        if all(isinstance(target, ast.Name) and target.id in fresh for target in statement.targets):
            return None
        return Obstacle(line=line, reason="it deletes what the step did not make")
    is_with = is_tape(statement) or _is_block(statement)
    if is_with or isinstance(statement, ast.If | ast.For | ast.While):
        if not is_tape(statement) and holds_step(statement, fresh):
            return Obstacle(line=line, reason="it holds the whole step")
        if isinstance(statement, ast.For) and not isinstance(
            statement.target, ast.Name | ast.Tuple
        ):
            return Obstacle(line=line, reason="it binds more than names")
        in_loop = in_loop or isinstance(statement, ast.For | ast.While)
        inner = set(fresh)
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.stmt):
                found = obstacle_in(child, inner, in_loop=in_loop, can_defer=is_with)
                inner |= stores_in(child)
            else:
                found = _in_expressions(child, fresh, line=line)
            if found is not None:
                return found
        return None
    if in_loop and isinstance(statement, ast.Break | ast.Continue):
        return None
    if not isinstance(statement, _SIMPLE):
        word = type(statement).__name__.lower()
        word = _WORDS.get(word, word)
        return Obstacle(line=line, reason=f"`{word}` cannot be a part of a graph")
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    for target in filter(None, targets):
        for inner in ast.walk(target):
            if isinstance(inner, ast.Attribute | ast.Subscript):
                if isinstance(inner.ctx, ast.Store):
                    reason = f"it changes {ast.unparse(inner)}, an object of Python"
                    return Obstacle(line=inner.lineno, reason=reason)
    return _in_expressions(statement, fresh)


def _in_expressions(node: ast.AST, fresh: set[str], line: int = 0) -> Obstacle | None:
    for inner in ast.walk(node):
        reason = _reason(inner, fresh)
        if reason is not None:
            return Obstacle(line=getattr(inner, "lineno", line), reason=reason)
    return None


def _reason(node: ast.AST, fresh: set[str]) -> str | None:
    match node:
        case ast.Yield() | ast.YieldFrom() | ast.Await() | ast.comprehension(is_async=1):
            return "it waits for other code"
        case ast.comprehension():
            parts = (part for test in node.ifs for part in ast.walk(test))
            if any(isinstance(part, ast.NamedExpr) for part in parts):
                return "it binds a name within a comprehension"
        case ast.Call(func=ast.Name(id=name)):
            if name == "super" and not node.args:
                return "it calls super()"
            if name in _IMPURE:
                return f"it calls {name}(): {_IMPURE[name]}"
        case ast.Call(func=ast.Attribute(attr=name, value=base)):
            text = ast.unparse(node.func)
            if text.startswith(_DRAWS) and not text.startswith(_DRAWS_IN_GRAPHS):
                return f"{text}() draws numbers of its own in every call"
            if name in _HOST_READS and not node.args:
                return f"{text}() gives a number of a tensor to Python"
            if name in _CHANGES and not (isinstance(base, ast.Name) and base.id in fresh):
                return f"{text}() changes an object of Python"
        case _:
            pass
    return None


def _is_method(node: ast.AST, names: Sequence[str]) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in names
    )


_BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Statements of a block that can be a function."""

    number: int  # Index in the module
    first: int  # The line of its first statement
    last: int  # The line of its last
    parameters: tuple[str, ...]  # Names that it reads from outside
    results: tuple[str, ...]  # Names that it binds and that are read later
    returns: bool  # Whether its last statement returns a value
    # Parameters that are used otherwise than as an argument of a call
    in_arithmetic: frozenset[str]
    shown: frozenset[str]  # Names that statements read that run behind it, though they are in it
    outside_shown: tuple[str, ...]  # Names of them that the region itself neither reads nor binds
    deferred: tuple[tuple[int, int], ...]  # The first and last lines of these statements
    end_of_block: int  # The last line of the block that it is in


Span = tuple[int, int]
"""The indices of the first and the last statement of a region in its block."""


def spans_of(block: Sequence[ast.stmt]) -> Iterator[list[Span]]:
    """Yield the regions of a block, each with the smaller ones in it, the largest first."""
    for begin, end in _runs(block):
        step = _step_in(block, begin, end)
        if step is None:
            continue
        first, last = step
        while first > begin and _prepares(block[first - 1]):
            first -= 1
        while last < end and _follows(block[last + 1]):
            last += 1
        spans = [(first, last), step]
        first, last = step
        gradients = [i for i in range(first, last + 1) if takes_gradient(block[i])]
        # A step up to its last gradients, if updates follow.
        if gradients and gradients[-1] < last and is_tape(block[first]):
            spans.append((first, gradients[-1]))
        yield list(dict.fromkeys(spans))


def obstacles_of(block: Sequence[ast.stmt]) -> Iterator[Obstacle]:
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
    """Return a region, or None if it leaves a tape behind that is used later."""
    first, last = span
    statements = block[first : last + 1]
    final = statements[-1]
    if not can_defer(statements):
        return None
    deferred = deferred_in(statements)
    shown = loads_in(*deferred)
    names = names_of(without_deferred(statements))
    results = sorted(
        name
        for name in names.bound
        if name in names.certain or name not in names.deleted
        if name in shown
        or (name in names.read and liveness.is_carried(name, block, first, last))
        or liveness.is_read_after(name, block, first, last)
    )
    nodes = [node for statement in statements for node in ast.walk(statement)]
    for item in (item for node in nodes if is_tape(node) for item in getattr(node, "items", ())):
        if isinstance(item.optional_vars, ast.Name) and item.optional_vars.id in results:
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
        in_arithmetic=frozenset(_in_arithmetic(nodes)),
        shown=frozenset(shown),
        end_of_block=block[-1].end_lineno or block[-1].lineno,
        outside_shown=tuple(sorted((shown & bound) - names.bound - set(parameters))),
        deferred=tuple(
            (statement.lineno, statement.end_lineno or statement.lineno) for statement in deferred
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
    used = loads_in(*(block[i] for i in ends if is_update(block[i])))
    given = [
        i
        for i in range(first, ends[-1])
        if _is_call(block[i]) and names_of([block[i]]).bound & used and not takes_gradient(block[i])
    ]
    return (given[0], ends[-1]) if given else None


def _is_call(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)


def _prepares(statement: ast.stmt) -> bool:
    """Return whether a statement before a step computes something, and does not select a batch."""
    if not isinstance(statement, ast.Assign) or isinstance(statement.value, ast.Constant):
        return False
    selects = (node for node in ast.walk(statement.value) if isinstance(node, ast.Subscript))
    return not any(loads_in(node.slice) for node in selects)


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


def _in_arithmetic(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield names that are used otherwise than as an argument, or for their shape."""
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


HOOK = "__evener_hoist__"
"""The name by which a rewritten module calls the run."""
_RESULTS = "__evener_results__"
_VALUE = "__evener_value__"
_REGION = "__evener_region__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hoisted:
    tree: ast.Module  # Its syntax tree, to be compiled
    regions: tuple[Region, ...]  # The regions, by their numbers
    obstacles: tuple[Obstacle, ...]  # Lines that keep statements out of regions
    lines_with_losses: tuple[int, ...]  # The lines that read ``losses`` of an object


def hoist_steps(
    source: str, path: str, *, first_number: int = 0, in_functions: bool = False
) -> Hoisted:
    module = SyntaxTree(source, path)
    liveness = Liveness(module)
    bound = {name for node in module.every(ast.AST) if (name := bound_name(node)) is not None}
    losses = [
        node.lineno
        for node in module.every(ast.Attribute)
        if node.attr == "losses" and last_name(node.value) != "keras"
    ]
    blocks = [block for parent in ast.walk(module.root) for block in blocks_of(parent)]
    obstacles = [
        Obstacle(line=node.lineno, reason=f"{node.id} may use any name")
        for node in module.every(ast.Name)
        if node.id in ("globals", "locals", "exec", "eval")
    ]
    if obstacles:
        blocks = []
    obstacles += [obstacle for block in blocks for obstacle in obstacles_of(block)]
    # All are found before one is replaced; in a block, from its end to its begin.
    regions: list[Region] = []
    planned: list[tuple[list[ast.stmt], list[tuple[Span, Region]]]] = []
    taken: set[ast.AST] = set()
    for block in blocks:
        if not _runs_often(module, block[0], in_functions=in_functions):
            continue
        for spans in spans_of(block):
            # What is within a region is a part of it.
            if taken.intersection(module.around(block[0])):
                break
            kept: list[tuple[Span, Region]] = []
            for span in spans:
                region = region_of(block, span, liveness, bound, first_number + len(regions))
                if region is not None:
                    regions.append(region)
                    kept.append((span, region))
                    taken.update(block[span[0] : span[1] + 1])
            if kept:
                planned.append((block, kept))
    for block, kept in reversed(planned):
        first, last = kept[0][0]
        block[first : last + 1] = _nested(block, kept)
    return Hoisted(
        tree=ast.fix_missing_locations(module.root),
        regions=tuple(regions),
        obstacles=tuple(obstacles),
        lines_with_losses=tuple(losses),
    )


def _runs_often(module: SyntaxTree, statement: ast.stmt, *, in_functions: bool) -> bool:
    """Return whether a statement is in a loop or in a function that nobody has decorated."""
    is_in_loop = False
    for outer in module.around(statement):
        if isinstance(outer, ast.AsyncFunctionDef | ast.ClassDef):
            return False
        if isinstance(outer, FUNCTIONS):
            marks = getattr(outer, "decorator_list", [])
            return not any(
                last_name(getattr(mark, "func", mark)) in ("function", "distribute")
                for mark in marks
            )
        is_in_loop = is_in_loop or isinstance(outer, ast.For | ast.While)
    return is_in_loop and not in_functions


def _nested(block: Sequence[ast.stmt], kept: Sequence[tuple[Span, Region]]) -> list[ast.stmt]:
    """Return the statements of a span as a region, with smaller ones in it: see the module."""
    (first, last), region = kept[0]
    statements = block[first : last + 1]
    written = list(statements)
    if len(kept) > 1:
        inner_first, inner_last = kept[1][0]
        written[inner_first - first : inner_last + 1 - first] = _nested(block, kept[1:])
    body = without_deferred(statements)
    results = list(region.results)
    if region.returns:
        returned = body[-1]
        assert isinstance(returned, ast.Return) and returned.value is not None
        target = ast.copy_location(ast.Name(_VALUE, ast.Store()), returned)
        body[-1] = ast.copy_location(ast.Assign([target], returned.value), returned)
        results.append(_VALUE)
    parameters, shown = ", ".join(region.parameters), region.outside_shown
    new = ast.parse(
        f"""
def {_REGION}({parameters}):
    return {_tuple(results)}
{_RESULTS} = {HOOK}({region.number}, {_REGION}, lambda: {_tuple([*region.parameters, *shown])})
if {_RESULTS} is None:
    with {HOOK}.as_written({region.number}):
        pass
else:
    {f"{_tuple(results)} = {_RESULTS}" if results else "pass"}
    {f"return {_VALUE}" if region.returns else ""}
"""
    ).body
    for node in (inner for statement in new for inner in ast.walk(statement)):
        ast.copy_location(node, statements[0])
    function, _, chosen = new
    assert isinstance(function, ast.FunctionDef) and isinstance(chosen, ast.If)
    (watched,) = chosen.body
    assert isinstance(watched, ast.With)
    function.body = [*body, ast.copy_location(function.body[0], body[-1])]
    watched.body = written
    chosen.orelse[1:1] = copy.deepcopy(deferred_in(statements))
    return new


def _tuple(names: Sequence[str]) -> str:
    return f"({''.join(f'{name}, ' for name in names)})"


# What the tools tell of eager steps: the notes of a run, the doctor, audits, plans and estimates.

Statement = TypeVar("Statement", bound=ast.stmt)


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
    if loop is not None and (function is None or loop.lineno > function.lineno):
        first, last = loop.body[0].lineno, loop.body[-1].end_lineno
        what = f"make a function of lines {first} to {last}, with @{tf}.function above it"
    elif function is not None:
        above = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        what = f"put @{tf}.function above line {above}, def {function.name}"
    else:
        what = f"make a function of the step, with @{tf}.function above it"
    return f"{what}, and all devices compute it"


def _innermost(module: SyntaxTree, line: int, *types: type[Statement]) -> Statement | None:
    """Return the last statement of some types that covers a line and holds a tape."""
    tapes = [name for name in module.every(ast.Name, ast.Attribute) if last_name(name) == _TAPE]
    holding = {outer for tape in tapes for outer in module.around(tape)}
    covering = [
        statement
        for statement in module.every(*types)
        if statement in holding and statement.lineno <= line <= (statement.end_lineno or 0)
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
