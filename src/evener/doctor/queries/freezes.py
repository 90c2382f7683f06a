"""Assignments of ``trainable``: layers and models that a program freezes or unfreezes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from evener.analysis import Location, Module, Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    """An assignment to ``trainable``.

    Args:
        module: Module that contains it.
        node: The assignment.
        owner: Model or layer to which it belongs.
    """

    module: Module
    node: ast.Assign
    owner: ast.expr

    @property
    def location(self) -> Location:
        """Return its line."""
        return self.module.location(self.node)

    def freezes(self, program: Program) -> bool:
        """Return whether it is known to be set to False."""
        return program.constant(self.module, self.node.value) is False


def freezes(program: Program) -> Iterator[Freeze]:
    """Yield the assignments to ``trainable``, of True too."""
    for module, node in program.nodes(ast.Assign):
        assert isinstance(node, ast.Assign)
        for target in node.targets:
            if isinstance(target, ast.Attribute) and target.attr == "trainable":
                yield Freeze(module=module, node=node, owner=target.value)
