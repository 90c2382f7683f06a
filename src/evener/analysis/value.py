"""An expression or definition that a value comes from."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from evener.analysis.binding import Step
from evener.analysis.module import Module


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """An expression or definition that a value comes from.

    Args:
        module: Module that contains it.
        node: A call, a constant, another expression, a function, a class; or an ``ast.arg``, if
            the argument of a parameter is not known.
        steps: Steps that lead from it to the value, such as ``("each", 0)``.
    """

    module: Module
    node: ast.AST
    steps: tuple[Step, ...] = ()
