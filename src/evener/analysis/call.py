"""Calls, and the calls that lead to a function, with the arguments of its parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from evener.analysis.api.successors import METHOD_ALIASES
from evener.analysis.binding import Step
from evener.analysis.location import Location
from evener.analysis.module import Function, Module


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call in the program.

    Args:
        module: Module that contains it.
        node: The call itself.
        name: Name of the callee, such as ``"tf.distribute.MirroredStrategy"``; ``".run"`` for a
            method of an object of the program.
    """

    module: Module
    node: ast.Call
    name: str

    @property
    def location(self) -> Location:
        """Return its line."""
        return self.module.location(self.node)

    def argument(self, position: int | None, name: str | None = None) -> ast.expr | None:
        """Return the argument at a position or with a name, or None."""
        return argument(self.node, position, name)

    @property
    def method(self) -> str:
        """Return the name of the method, or of the function of a module, that is called.

        For a removed method, it is the name of its successor.
        """
        if not isinstance(self.node.func, ast.Attribute):
            return ""
        return METHOD_ALIASES.get(self.node.func.attr, self.node.func.attr)

    @property
    def owner(self) -> ast.expr | None:
        """Return the expression whose method is called; None for a plain function."""
        return self.node.func.value if isinstance(self.node.func, ast.Attribute) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A call that leads to a function of the program.

    Args:
        module: Module that contains the call.
        call: The call.
        function: The function it leads to.
        skips_self: Whether the first parameter is the object.
        way: ``"call"``; ``"run"`` for ``strategy.run(function, args=...)``; ``"map"`` for
            ``dataset.map(function)``, which gives it elements.
    """

    module: Module
    call: ast.Call
    function: Function
    skips_self: bool = False
    way: str = "call"

    def given_to(self, parameter: str) -> Iterator[tuple[ast.expr, tuple[Step, ...]]]:
        """Yield the arguments for a parameter, with the steps that lead from them to its value."""
        names = _positional(self.function)[self.skips_self :]
        positional, keywords = self._given()
        index = names.index(parameter) if parameter in names else None
        if self.way == "map":
            if index is not None and isinstance(self.call.func, ast.Attribute):
                step: tuple[Step, ...] = ("each", index) if len(names) > 1 else ("each",)
                yield self.call.func.value, step
            return
        for given in keywords:
            if given.arg == parameter:
                yield given.value, ()
        if index is None:
            return
        for position, given in enumerate(positional):
            if isinstance(given, ast.Starred):
                if position <= index:
                    yield given.value, (index - position,)
                return
            if position == index:
                yield given, ()

    def _given(self) -> tuple[list[ast.expr], list[ast.keyword]]:
        if self.way != "run":
            return list(self.call.args), list(self.call.keywords)
        args = argument(self.call, 1, "args")
        if isinstance(args, ast.Tuple | ast.List):
            return list(args.elts), []
        if args is None:
            return [], []
        return [ast.Starred(value=args)], []


def argument(call: ast.Call, position: int | None, name: str | None) -> ast.expr | None:
    """Return the argument of a call at a position or with a name, or None."""
    for keyword in call.keywords:
        if keyword.arg is not None and keyword.arg == name:
            return keyword.value
    if position is None:
        return None
    before = call.args[: position + 1]
    if len(before) <= position or any(isinstance(value, ast.Starred) for value in before):
        return None
    return before[position]


def _positional(function: Function) -> list[str]:
    given = function.args
    named = [parameter.arg for parameter in (*given.posonlyargs, *given.args)]
    return [*named, given.vararg.arg] if given.vararg is not None else named


def is_method(module: Module, function: ast.AST) -> bool:
    """Return whether a function is called on an object."""
    if not isinstance(module.parents.get(function), ast.ClassDef):
        return False
    decorators = getattr(function, "decorator_list", [])
    return not any(
        isinstance(decorator, ast.Name) and decorator.id == "staticmethod"
        for decorator in decorators
    )
