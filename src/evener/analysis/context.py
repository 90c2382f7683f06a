"""Context in which a line runs: a scope, a replica, a loop, a traced function.

It is searched in the function first, then at all calls of the function.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator

from evener.analysis.api.successors import METHOD_ALIASES
from evener.analysis.interface import ProgramQueries
from evener.analysis.kinds import Kind
from evener.analysis.module import FUNCTIONS, Function, Module

_RUNS = ("run", *(old for old, new in METHOD_ALIASES.items() if new == "run"))
Loop = ast.For | ast.AsyncFor | ast.While
Holds = Callable[[Module, ast.AST], bool]


class Context:
    """Answers queries about the contexts of the nodes of a program.

    Args:
        program: The program.
    """

    def __init__(self, program: ProgramQueries) -> None:
        self._program = program
        self._known: dict[tuple[str, ast.AST], frozenset[bool]] = {}

    def function(self, module: Module, node: ast.AST) -> Function | None:
        """Return the function right around a node."""
        return next((outer for outer in module.around(node) if isinstance(outer, FUNCTIONS)), None)

    def loops(self, module: Module, node: ast.AST) -> Iterator[Loop]:
        """Yield the loops around a node in its own function, innermost first."""
        inner: ast.AST = node
        for outer in module.around(node):
            if isinstance(outer, FUNCTIONS):
                return
            # What a loop goes through is computed before it, what follows it after.
            header = outer.iter if isinstance(outer, ast.For | ast.AsyncFor) else None
            if isinstance(outer, Loop) and inner is not header and inner not in outer.orelse:
                yield outer
            inner = outer

    def contexts(self, module: Module, node: ast.AST) -> Iterator[ast.expr]:
        """Yield what the ``with`` blocks around a node in its own function enter, inner first."""
        inner: ast.AST = node
        for outer in module.around(node):
            if isinstance(outer, FUNCTIONS):
                return
            if isinstance(outer, ast.With | ast.AsyncWith) and not isinstance(inner, ast.withitem):
                yield from (item.context_expr for item in reversed(outer.items))
            inner = outer

    def in_scope(self, module: Module, node: ast.AST) -> bool | None:
        """Return whether a node always runs in a strategy's scope; None if only sometimes."""
        return self._asked("scope", module, node, self.is_scoped_here)

    def in_replica(self, module: Module, node: ast.AST) -> bool | None:
        """Return whether a node always runs in ``strategy.run``; None if only sometimes."""
        return self._asked("replica", module, node, self._is_given_to_run)

    def is_traced(self, module: Module, node: ast.AST) -> bool | None:
        """Return whether a node always runs in a `tf.function`; None if only sometimes."""
        return self._asked("traced", module, node, self._is_in_traced)

    def in_loop_over_batches(self, module: Module, node: ast.AST) -> bool | None:
        """Return whether a node always runs once per batch; None if only sometimes."""
        return self._asked("batches", module, node, self._is_in_batches)

    def is_scope(self, module: Module, node: ast.expr) -> bool:
        """Return whether an expression enters a strategy's scope, if only where there is one."""
        if isinstance(node, ast.IfExp):
            return self.is_scope(module, node.body) or self.is_scope(module, node.orelse)
        if isinstance(node, ast.Name | ast.Attribute):
            return any(
                isinstance(value.node, ast.Call) and self.is_scope(value.module, value.node)
                for value in self._program.origins(module, node)
            )
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "scope":
                kinds = self._program.kinds(module, node.func.value)
                named = "strategy" in ast.unparse(node.func.value).lower()
                # What is unknown and has a scope is most likely one.
                return Kind.STRATEGY in kinds or named or not (kinds or node.args)
        return False

    def is_over_batches(self, module: Module, loop: Loop) -> bool:
        """Return whether a loop goes through the batches of a dataset, or takes steps."""
        if isinstance(loop, ast.While):
            return _calls_any(loop, ("train_step", "apply_gradients", "train_on_batch"))
        # What is gone through itself, its elements, and what enumerate and zip give of them.
        for steps in ((), ("each",), ("each", 1)):
            kinds = self._program.kinds(module, loop.iter, steps)
            if kinds & {Kind.DATASET, Kind.DISTRIBUTED, Kind.BATCH, Kind.PER_REPLICA}:
                return True
        inner = [node for node in ast.walk(loop) if isinstance(node, Loop) and node is not loop]
        return not inner and self._takes_steps(module, loop)

    def is_decorated(self, module: Module, function: ast.AST, name: str) -> bool:
        """Return whether a function has a decorator of a name, called or not."""
        return self.decorator(module, function, name) is not None

    def decorator(self, module: Module, function: ast.AST, name: str) -> ast.expr | None:
        """Return the decorator of a name that a function has, called or not; else None."""
        for decorator in getattr(function, "decorator_list", []):
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if self._program.name_of(module, called) == name:
                return decorator
            # functools.partial(tf.function, ...)
            if isinstance(decorator, ast.Call) and decorator.args:
                if self._program.name_of(module, decorator.args[0]) == name:
                    return decorator
        return None

    def _asked(self, about: str, module: Module, node: ast.AST, holds: Holds) -> bool | None:
        answers = self._answers(about, module, node, holds)
        return True if answers == frozenset({True}) else None if True in answers else False

    def _answers(self, about: str, module: Module, node: ast.AST, holds: Holds) -> frozenset[bool]:
        """Return what holds on the ways that lead to a node."""
        if holds(module, node):
            return frozenset({True})
        function = self.function(module, node)
        if function is None:
            return frozenset({False})
        key = (about, function)
        if key not in self._known:
            # On the way back to itself nothing new is learnt.
            self._known[key] = frozenset()
            found = frozenset[bool]().union(
                *(
                    self._answers(about, site.module, site.call, holds)
                    for site in self._program.call_sites(function)
                )
            )
            self._known[key] = found or frozenset({False})
        return self._known[key]

    def is_scoped_here(self, module: Module, node: ast.AST) -> bool:
        """Return whether a node stands in a strategy's scope in its own function."""
        return any(self.is_scope(module, context) for context in self.contexts(module, node))

    def _is_given_to_run(self, module: Module, node: ast.AST) -> bool:
        for outer in module.around(node):
            if isinstance(outer, FUNCTIONS) and any(
                site.way == "run" for site in self._program.call_sites(outer)
            ):
                return True
        return False

    def _is_in_traced(self, module: Module, node: ast.AST) -> bool:
        for outer in module.around(node):
            if isinstance(outer, FUNCTIONS) and (
                self.is_decorated(module, outer, "tf.function") or outer in self._wrapped
            ):
                return True
        return False

    @functools.cached_property
    def _wrapped(self) -> set[ast.AST]:
        """Return the functions that are given to `tf.function` by a call."""
        found: set[ast.AST] = set()
        for call in self._program.calls("tf.function"):
            for given in call.node.args[:1]:
                found.update(f for _, f in self._program.functions_of(call.module, given))
        return found

    def _is_in_batches(self, module: Module, node: ast.AST) -> bool:
        return any(self.is_over_batches(module, loop) for loop in self.loops(module, node))

    def _takes_steps(self, module: Module, loop: Loop) -> bool:
        names = ("apply_gradients", "train_on_batch", "train_step", "minimize", "train_fn")
        if _calls_any(loop, names):
            return True
        for node in ast.walk(loop):
            if isinstance(node, ast.Call):
                if isinstance(node.func, ast.Attribute) and node.func.attr in _RUNS:
                    if Kind.STRATEGY in self._program.kinds(module, node.func.value):
                        return True
                for _, target in self._program.targets(module, node):
                    if not isinstance(target, ast.ClassDef) and _calls_any(target, names):
                        return True
        return False


def _calls_any(tree: ast.AST, names: tuple[str, ...]) -> bool:
    return any(
        isinstance(node, ast.Call)
        and (getattr(node.func, "attr", None) or getattr(node.func, "id", None)) in names
        for node in ast.walk(tree)
    )
