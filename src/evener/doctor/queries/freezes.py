"""Where a program sets ``trainable``: what it freezes, and what it lets train."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from evener.analysis import Module, Place, Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    """An assignment to ``trainable``.

    Args:
        module: Where it stands.
        node: The assignment.
        owner: Whose it is: a model, a layer.
    """

    module: Module
    node: ast.Assign
    owner: ast.expr

    @property
    def place(self) -> Place:
        """Return its line."""
        return self.module.place(self.node)

    def freezes(self, program: Program) -> bool:
        """Return whether it surely is set to False."""
        return program.constant(self.module, self.node.value) is False


def freezes(program: Program) -> Iterator[Freeze]:
    """Yield the assignments to ``trainable``, of True too."""
    for module, node in program.nodes(ast.Assign):
        assert isinstance(node, ast.Assign)
        for target in node.targets:
            if isinstance(target, ast.Attribute) and target.attr == "trainable":
                yield Freeze(module=module, node=node, owner=target.value)
