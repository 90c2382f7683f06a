"""The syntax tree of a module in which every region is a function beside the statements as written.

::

    loss = step(x)            def region(x): loss = step(x); return (loss,)
    update(loss)       ──►    results = hook(3, region, lambda: (x,))
                              if results is None:
                                  with hook.as_written(3):
                                      loss = step(x)          the script's own statements
                              else:
                                  (loss,) = results
                              update(loss)

All that is new has the lines of the region, so that tracebacks name lines of the script.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from dataclasses import dataclass

from evener.analysis.hoisting.deferred import deferred_in, without_deferred
from evener.analysis.hoisting.liveness import Liveness, blocks_of
from evener.analysis.hoisting.regions import (
    Obstacle,
    Region,
    Span,
    obstacles_of,
    region_of,
    spans_of,
)
from evener.analysis.hoisting.syntax_tree import FUNCTIONS, SyntaxTree, last_name

HOOK = "__evener_hoist__"
"""The name by which a rewritten module calls the run."""
_RESULTS = "__evener_results__"
_VALUE = "__evener_value__"
_REGION = "__evener_region__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hoisted:
    """A module that was rewritten.

    Args:
        tree: Its syntax tree, to be compiled.
        regions: The regions, by their numbers.
        obstacles: Lines that keep statements out of regions.
        lines_with_losses: The lines that read ``losses`` of an object.
    """

    tree: ast.Module
    regions: tuple[Region, ...]
    obstacles: tuple[Obstacle, ...]
    lines_with_losses: tuple[int, ...]


def hoist_steps(
    source: str, path: str, *, first_number: int = 0, in_functions: bool = False
) -> Hoisted:
    """Return a module in which every region that was found is a function too.

    Args:
        source: The text of the module.
        path: Its file.
        first_number: The number of its first region.
        in_functions: Whether only functions are rewritten, because other modules may read the
            names of this one.

    Raises:
        SyntaxError: The text is not Python.
    """
    module = SyntaxTree(source, path)
    rewriting = _Rewriting(module, first_number, in_functions=in_functions)
    losses = [
        node.lineno
        for node in module.every(ast.Attribute)
        if node.attr == "losses" and last_name(node.value) != "keras"
    ]
    if not _uses_any_name(module):
        rewriting.all_blocks()
    return Hoisted(
        tree=ast.fix_missing_locations(module.root),
        regions=tuple(rewriting.regions),
        obstacles=tuple(rewriting.obstacles),
        lines_with_losses=tuple(losses),
    )


def _uses_any_name(module: SyntaxTree) -> bool:
    """Return whether a module may read and bind names that its text does not have."""
    return any(node.id in ("globals", "locals", "exec", "eval") for node in module.every(ast.Name))


class _Rewriting:
    def __init__(self, module: SyntaxTree, first_number: int, *, in_functions: bool) -> None:
        self._in_functions = in_functions
        self._module = module
        self._number = first_number
        self._liveness = Liveness(module)
        self._bound = _all_bound(module)
        self.regions: list[Region] = []
        self.obstacles: list[Obstacle] = []

    def all_blocks(self) -> None:
        found = [
            (block, spans)
            for parent in ast.walk(self._module.root)
            for block in blocks_of(parent)
            if self._runs_often(block[0])
            for spans in spans_of(block)
        ]
        for parent in ast.walk(self._module.root):
            for block in blocks_of(parent):
                self.obstacles += obstacles_of(block)
        # All are found before one is replaced; in a block, from its end to its begin.
        planned: list[tuple[list[ast.stmt], list[Span], list[Region | None]]] = []
        taken: set[ast.AST] = set()
        for block, spans in found:
            # What is within a region is a part of it.
            if not taken.intersection(self._module.around(block[0])):
                regions = self._regions(block, spans)
                planned.append((block, spans, regions))
                for (first, last), region in zip(spans, regions, strict=True):
                    taken.update(block[first : last + 1] if region is not None else ())
        for block, spans, regions in reversed(planned):
            kept = [(s, r) for s, r in zip(spans, regions, strict=True) if r is not None]
            if kept:
                first, last = kept[0][0]
                block[first : last + 1] = _nested(block, kept)

    def _regions(self, block: Sequence[ast.stmt], spans: Sequence[Span]) -> list[Region | None]:
        found: list[Region | None] = []
        for span in spans:
            region = region_of(block, span, self._liveness, self._bound, self._number)
            if region is not None:
                self._number += 1
                self.regions.append(region)
            found.append(region)
        return found

    def _runs_often(self, statement: ast.stmt) -> bool:
        """Return whether a statement is in a loop or in a function that nobody has decorated."""
        is_in_loop = False
        for outer in self._module.around(statement):
            if isinstance(outer, ast.AsyncFunctionDef | ast.ClassDef):
                return False
            if isinstance(outer, FUNCTIONS):
                marks = getattr(outer, "decorator_list", [])
                return not any(_traces(mark) for mark in marks)
            is_in_loop = is_in_loop or isinstance(outer, ast.For | ast.While)
        return is_in_loop and not self._in_functions


def _traces(decorator: ast.expr) -> bool:
    named = decorator.func if isinstance(decorator, ast.Call) else decorator
    return last_name(named) in ("function", "distribute")


def _all_bound(module: SyntaxTree) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(module.root):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
    return found


def _nested(
    block: Sequence[ast.stmt], kept: Sequence[tuple[Span, Region]], within: Span | None = None
) -> list[ast.stmt]:
    """Return the statements of a span, as a region if one is left, with smaller ones in it."""
    if not kept:
        first, last = within or (0, -1)
        return list(block[first : last + 1])
    (first, last), region = kept[0]
    statements = block[first : last + 1]
    if len(kept) > 1:
        inner_first, inner_last = kept[1][0]
        written = [
            *block[first:inner_first],
            *_nested(block, kept[1:]),
            *block[inner_last + 1 : last + 1],
        ]
    else:
        written = list(statements)
    return _as_region(statements, region, written)


def _as_region(
    statements: Sequence[ast.stmt], region: Region, written: list[ast.stmt]
) -> list[ast.stmt]:
    body = without_deferred(statements)
    results = list(region.results)
    if region.returns:
        returned = body[-1]
        assert isinstance(returned, ast.Return) and returned.value is not None
        target = ast.copy_location(ast.Name(_VALUE, ast.Store()), returned)
        body[-1] = ast.copy_location(ast.Assign([target], returned.value), returned)
        results = [*results, _VALUE]
    body.append(ast.copy_location(ast.Return(_tuple(results, ast.Load())), body[-1]))
    arguments = [ast.arg(name) for name in region.parameters]
    function = ast.FunctionDef(
        name=_REGION,
        args=ast.arguments(
            posonlyargs=[], args=arguments, kwonlyargs=[], kw_defaults=[], defaults=[]
        ),
        body=body,
        decorator_list=[],
    )
    if "type_params" in ast.FunctionDef._fields:  # since Python 3.12
        function.type_params = []  # pyright: ignore[reportAttributeAccessIssue]
    call = _hook_call(region)
    chosen = ast.If(
        test=ast.Compare(_load(_RESULTS), [ast.Is()], [ast.Constant(None)]),
        body=[_as_written(region, written)],
        orelse=_taken(region, results, copy.deepcopy(deferred_in(statements))),
    )
    new: list[ast.stmt] = [function, ast.Assign([ast.Name(_RESULTS, ast.Store())], call), chosen]
    for statement in new:
        _locate(statement, statements[0])
    return new


def _hook_call(region: Region) -> ast.expr:
    no_arguments = ast.arguments(
        posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    read = ast.Lambda(no_arguments, _tuple([*region.parameters, *region.outside_shown], ast.Load()))
    return ast.Call(_load(HOOK), [ast.Constant(region.number), _load(_REGION), read], [])


def _as_written(region: Region, written: list[ast.stmt]) -> ast.stmt:
    watch = ast.Attribute(_load(HOOK), "as_written", ast.Load())
    item = ast.withitem(ast.Call(watch, [ast.Constant(region.number)], []))
    return ast.With(items=[item], body=written)


def _taken(region: Region, results: Sequence[str], deferred: Sequence[ast.stmt]) -> list[ast.stmt]:
    statements: list[ast.stmt] = [ast.Pass()]
    if results:
        statements = [ast.Assign([_tuple(results, ast.Store())], _load(_RESULTS))]
    statements += deferred
    if region.returns:
        statements.append(ast.Return(_load(_VALUE)))
    return statements


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _tuple(names: Sequence[str], context: ast.expr_context) -> ast.Tuple:
    made = type(context)
    return ast.Tuple([ast.Name(name, made()) for name in names], made())


def _locate(node: ast.AST, source: ast.AST) -> None:
    """Give nodes without a line that of a source node; the script's own nodes keep theirs."""
    if "lineno" in node._attributes and not hasattr(node, "lineno"):
        ast.copy_location(node, source)
    for child in ast.iter_child_nodes(node):
        _locate(child, source)
