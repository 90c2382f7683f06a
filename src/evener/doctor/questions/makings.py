"""Where the models and optimizers of a program are made, and whether in a strategy's scope.

What a function makes and returns is made where it is called: there the scope has to be.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from evener.doctor.program import FUNCTIONS, Kind, Module, Program, returns_of
from evener.doctor.program.values import Value

_MOST_SITES = 12
_MOST_LINKS = 200
_ANY: frozenset[ast.AST] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """A model or optimizer that is made.

    Args:
        module: Where the line is to which it is due.
        node: The call that makes it, or that calls the function that makes and returns it.
        call: The call that makes it in the end.
        call_module: Where that is.
        in_scope: Whether a scope is around it; None if only sometimes.
    """

    module: Module
    node: ast.AST
    call: ast.Call
    call_module: Module
    in_scope: bool | None


def makings_of(program: Program, module: Module, node: ast.AST) -> list[Making]:
    """Return where what an expression gives is made: one for each way to it.

    Args:
        program: The program.
        module: Where the expression stands.
        node: The expression, such as the ``model`` of ``model.fit``.
    """
    near = nearest_calls(program, module, node)
    found = []
    for value in program.origins(module, node):
        if isinstance(value.node, ast.Call):
            found += makings(program, value, near)
    return found


def makings(program: Program, value: Value, near: frozenset[ast.AST] = _ANY) -> list[Making]:
    """Return where a value is made, one for each call of the function that returns it.

    Args:
        program: The program.
        value: The value; its node is the call that makes it.
        near: The calls through one of which it has to come; empty for any.
    """
    call = value.node
    assert isinstance(call, ast.Call)
    return [
        Making(
            module=module,
            node=node,
            call=call,
            call_module=value.module,
            in_scope=program.around.in_scope(module, node),
        )
        for module, node, through in _sites(program, value.module, call, call, (call,))
        if not near or not through or near & set(through)
    ]


def nearest_calls(program: Program, module: Module, node: ast.AST) -> frozenset[ast.AST]:
    """Return the calls that an expression is bound to, functions not entered."""
    found = set[ast.AST]()
    seen = set[ast.AST]()
    waiting: list[tuple[Module, ast.AST]] = [(module, node)]
    while waiting:
        where, one = waiting.pop()
        if one in seen or len(seen) > _MOST_LINKS:
            continue
        seen.add(one)
        if isinstance(one, ast.Call):
            found.add(one)
        elif isinstance(one, ast.Name):
            for place, binding in program.bindings(where, one):
                if binding.value is not None:
                    waiting.append((place, binding.value))
                elif binding.parameter_of is not None:
                    for site in program.call_sites(binding.parameter_of):
                        given = site.given_to(binding.name)
                        waiting += [(site.module, expression) for expression, _ in given]
        elif isinstance(one, ast.Attribute):
            for place, definition in program.classes.of(where, one.value):
                attributes = program.classes.attributes(place, definition, one.attr)
                waiting += [(there, value) for there, value, _ in attributes]
        elif isinstance(one, ast.IfExp):
            waiting += [(where, one.body), (where, one.orelse)]
    return frozenset(found)


def models_made(program: Program) -> Iterator[Making]:
    """Yield where models are made that the program makes itself."""
    for call in program.all_calls:
        if makes(program, call.module, call.node, Kind.MODEL):
            yield from makings(program, Value(module=call.module, node=call.node))


def makes(program: Program, module: Module, node: ast.Call, kind: Kind) -> bool:
    """Return whether a call makes a thing of a kind, and does not merely return one."""
    name = program.callee(module, node)
    if name:
        # `super().__init__` has no name; `keras.Model.fit` is none that makes.
        return name.startswith("keras.") and kind in program.kinds(module, node)
    return any(
        isinstance(target, ast.ClassDef) and program.kind_of_class(where, target) is kind
        for where, target in program.targets(module, node)
    )


def _sites(
    program: Program,
    module: Module,
    node: ast.AST,
    made: ast.Call,
    through: tuple[ast.AST, ...],
) -> Iterator[tuple[Module, ast.AST, tuple[ast.AST, ...]]]:
    """Yield the lines to which the making is due, with all calls on the way to it."""
    function = program.around.function(module, node)
    sites = (
        [site for site in program.call_sites(function) if site.way == "call"] if function else []
    )
    if program.around.is_scoped_here(module, node):
        # Whoever calls the function: the scope is in it.
        yield module, node, ()
        return
    if not sites or not _returns(program, module, function, made):
        yield module, node, through
        return
    for site in sites[:_MOST_SITES]:
        if site.call not in through:
            yield from _sites(program, site.module, site.call, made, (*through, site.call))


def _returns(program: Program, module: Module, function: ast.AST | None, made: ast.Call) -> bool:
    if not isinstance(function, FUNCTIONS):
        return False
    for returned in returns_of(function):
        parts = returned.elts if isinstance(returned, ast.Tuple) else [returned]
        for part in parts:
            if any(value.node is made for value in program.origins(module, part)):
                return True
    return False
