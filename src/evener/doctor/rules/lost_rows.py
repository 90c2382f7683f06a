"""DOC-217: shards whose size is an integer division leave the last rows out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Location, Module, Program
from evener.doctor.queries.gpus import counts_gpus, visible_gpus
from evener.doctor.queries.numbers import number
from evener.doctor.queries.source_text import shown
from evener.doctor.rule import Case, Violation

_MAKERS = ("zeros", "ones", "rand", "randn", "normal", "uniform", "random", "empty", "full")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    divisions = {
        node: module
        for module, node in program.nodes(ast.BinOp)
        if isinstance(node.op, ast.FloorDiv) and counts_gpus(program, module, node.right)
    }
    if not divisions or _handles_rest(program):
        return
    for module, part in program.nodes(ast.Slice):
        division = _size_of(program, module, part, divisions)
        if division is None or _divides(case, divisions[division], division):
            continue
        location: Location = divisions[division].location(division)
        yield Violation(
            location,
            f"{shown(division)} rounds down: the rows behind the last shard are not trained on.",
            why="With 1,000 rows on 3 devices each shard has 333 of them: row 1,000 is lost in "
            "every epoch.",
            fix="let the strategy split each batch (experimental_distribute_dataset), or use "
            "np.array_split(x, num_devices), whose parts differ by at most one row.",
            evidence=(location.text, module.location(part).text),
            cause=location.text,
        )


def _size_of(
    program: Program, module: Module, part: ast.Slice, divisions: dict[ast.BinOp, Module]
) -> ast.BinOp | None:
    """Return the division that gives the size of a slice ``x[i * size : (i + 1) * size]``."""
    if part.lower is None or part.upper is None:
        return None
    is_counted = any(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        for node in ast.walk(part.lower)
    ) or isinstance(part.lower, ast.Name)
    if not is_counted:
        return None
    return _division_in(program, module, part.upper, divisions)


def _division_in(
    program: Program,
    module: Module,
    node: ast.AST,
    divisions: dict[ast.BinOp, Module],
    depth: int = 3,
) -> ast.BinOp | None:
    """Return the division that an expression is computed from."""
    for name in ast.walk(node):
        for value in program.origins(module, name) if isinstance(name, ast.Name) else ():
            if not isinstance(value.node, ast.BinOp):
                continue
            if value.node in divisions:
                return value.node
            if depth:
                found = _division_in(program, value.module, value.node, divisions, depth - 1)
                if found is not None:
                    return found
    return None


def _handles_rest(program: Program) -> bool:
    """Return whether the program computes the rest of such a division, or divides otherwise."""
    for module, node in program.nodes(ast.BinOp):
        if isinstance(node.op, ast.Mod) and counts_gpus(program, module, node.right):
            return True
    if any(True for _ in program.calls("np.array_split", "math.ceil", "divmod", "np.ceil")):
        return True
    return any(
        part.upper is None and part.lower is not None and _is_product(part.lower)
        for _, part in program.nodes(ast.Slice)
    )


def _is_product(node: ast.expr) -> bool:
    return any(
        isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult) for part in ast.walk(node)
    )


def _divides(case: Case, module: Module, division: ast.BinOp) -> bool:
    """Return whether the number of rows is known, and a multiple of the number of devices."""
    rows, devices = _rows(case.program, module, division.left), visible_gpus(case)
    return rows is not None and bool(devices) and rows % (devices or 1) == 0


def _rows(program: Program, module: Module, node: ast.expr) -> int | None:
    known = number(program, module, node)
    if known is not None:
        return int(known.value) if not known.power else None
    for value in program.origins(module, node):
        counted = _counted(program, value.module, value.node)
        for array in program.origins(value.module, counted) if counted is not None else ():
            rows = _first_size(program, array.module, array.node)
            if rows is not None:
                return rows
    return None


def _counted(program: Program, module: Module, node: ast.AST) -> ast.expr | None:
    """Return ``x`` of ``len(x)`` and ``x.shape[0]``."""
    if isinstance(node, ast.Call) and program.name_of(module, node.func) == "len" and node.args:
        return node.args[0]
    return node.value if isinstance(node, ast.Attribute) and node.attr == "shape" else None


def _first_size(program: Program, module: Module, node: ast.AST) -> int | None:
    """Return the first size of an array that is made of a written shape."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _MAKERS:
            shape = next(
                (k.value for k in node.keywords if k.arg in ("size", "shape")),
                node.args[0] if node.args else None,
            )
            first = shape.elts[0] if isinstance(shape, ast.Tuple) and shape.elts else shape
            size = program.constant(module, first)
            return size if isinstance(size, int) else None
        node = node.func.value
    return None
