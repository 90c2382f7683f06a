"""DOC-309: operations on dtypes that TensorFlow does not mix."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Module, Program
from evener.doctor.queries.dtypes import Dtypes
from evener.doctor.queries.source_text import shown
from evener.doctor.rule import Case, Violation

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.MatMult)
_TWO_SIDED = frozenset(
    f"tf.{module}{name}"
    for module in ("", "math.", "linalg.")
    for name in "add subtract multiply divide matmul maximum minimum pow equal".split()
)


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program, dtypes = case.program, Dtypes(case.program)
    for module, node in program.nodes(ast.BinOp, ast.Call):
        sides = _sides(program, module, node)
        if sides is None:
            continue
        left, right = sides
        left_dtype, right_dtype = dtypes.of(module, left), dtypes.of(module, right)
        if left_dtype and right_dtype and left_dtype != right_dtype:
            is_left = right_dtype.startswith("float")
            goal, other = (right_dtype, left) if is_left else (left_dtype, right)
            yield Violation(
                module.location(node),
                f"{shown(left)} is {left_dtype} and {shown(right)} is {right_dtype}: they do not "
                "mix.",
                why="TensorFlow converts Python's numbers to the dtype of the other side, but "
                "never a tensor. This line raises as soon as it is run or traced.",
                fix=f"tf.cast({shown(other)}, tf.{goal})",
            )


def _sides(program: Program, module: Module, node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATORS):
        return node.left, node.right
    if isinstance(node, ast.Call) and len(node.args) > 1:
        if program.name_of(module, node.func) in _TWO_SIDED:
            return node.args[0], node.args[1]
    return None
