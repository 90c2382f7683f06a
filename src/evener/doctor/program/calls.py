"""Who calls which function of the program, and what is given to its parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from evener.doctor.program.module import Function, Module
from evener.doctor.program.scopes import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A call that leads to a function of the program.

    Args:
        module: Where the call stands.
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
        """Yield what the call gives to a parameter, with what is taken out of it."""
        names = _positional(self.function)[self.skips_self :]
        positional, keywords = self._given()
        index = names.index(parameter) if parameter in names else None
        if self.way == "map":
            if index is not None and isinstance(self.call.func, ast.Attribute):
                step: tuple[Step, ...] = ("each", index) if len(names) > 1 else ("each",)
                yield self.call.func.value, step
            return
        for one in keywords:
            if one.arg == parameter:
                yield one.value, ()
        if index is None:
            return
        for place, one in enumerate(positional):
            if isinstance(one, ast.Starred):
                if place <= index:
                    yield one.value, (index - place,)
                return
            if place == index:
                yield one, ()

    def _given(self) -> tuple[list[ast.expr], list[ast.keyword]]:
        if self.way != "run":
            return list(self.call.args), list(self.call.keywords)
        args = argument(self.call, 1, "args")
        kwargs = argument(self.call, 2, "kwargs")
        keywords = []
        if isinstance(kwargs, ast.Dict):
            keywords = [
                ast.keyword(arg=key.value, value=value)
                for key, value in zip(kwargs.keys, kwargs.values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            ]
        if isinstance(args, ast.Tuple | ast.List):
            return list(args.elts), keywords
        if args is None:
            return [], keywords
        return [ast.Starred(value=args)], keywords


def argument(call: ast.Call, position: int | None, name: str | None) -> ast.expr | None:
    """Return what a call gives at a position or by a name; None if it gives nothing there."""
    for keyword in call.keywords:
        if keyword.arg is not None and keyword.arg == name:
            return keyword.value
    if position is None:
        return None
    before = call.args[: position + 1]
    if len(before) <= position or any(isinstance(one, ast.Starred) for one in before):
        return None
    return before[position]


def _positional(function: Function) -> list[str]:
    given = function.args
    named = [one.arg for one in (*given.posonlyargs, *given.args)]
    return [*named, given.vararg.arg] if given.vararg is not None else named
