"""Functions of a program that take training steps, and loops over batches."""

from __future__ import annotations

import ast
import functools

from evener.analysis import FUNCTIONS, Call, Function, Kind, Loop, Module, Program, own_nodes
from evener.doctor.queries.layers import is_of_keras
from evener.doctor.queries.training import trainings, update_calls, ways_to

# Methods that Keras calls in every step.
_BY_KERAS = ("call", "train_step", "compute_loss", "compute_loss_and_updates")


class Steps:
    """Training steps of a program.

    Args:
        program: The program.

    Attributes:
        functions: The functions that take one step each time they are called.
        loops: The loops that go through batches and train, by their node.
        in_each: The functions that run in every step, or every time a traced function is called.
        in_training: Functions of ``in_each`` that a training step calls.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.functions: set[ast.AST] = set()
        self.loops: dict[ast.AST, Module] = {}
        self.in_each: dict[ast.AST, Module] = {}
        self.in_training: dict[ast.AST, Module] = {}
        self.updates: list[Call] = [
            *update_calls(program),
            *(call for call in trainings(program) if call.method == "train_on_batch"),
        ]
        self._find_loops()
        self._find_functions_in_each()

    def loop_around(self, module: Module, node: ast.AST) -> Loop | None:
        """Return the loop over batches in which a node runs once per batch, or None."""
        loops = self._program.context.loops(module, node)
        return next((loop for loop in loops if loop in self.loops), None)

    def _find_loops(self) -> None:
        """Go up from each update to the first loop around it."""
        for call in self.updates:
            for module, node in ways_to(self._program, call.module, call.node, self.functions):
                loop = next(self._program.context.loops(module, node), None)
                # A comprehension is the loop over batches itself, and no statement.
                if loop is not None and not _is_in_comprehension(module, node):
                    self.loops[loop] = module

    def _find_functions_in_each(self) -> None:
        program = self._program
        waiting: list[tuple[Module, ast.AST]] = []
        for module, node in program.nodes(ast.FunctionDef, ast.Lambda):
            if self._runs_in_each(module, node):
                waiting.append((module, node))
        for call in program.calls("keras.layers.Lambda"):
            given = call.argument(0, "function")
            if given is not None:
                waiting += [
                    pair
                    for pair in program.functions_of(call.module, given)
                    if isinstance(pair[1], FUNCTIONS)
                ]
        self.in_each = self._with_called(waiting)
        self.in_training = self._with_called(
            [pair for pair in waiting if pair[1] in self.functions or self._is_keras(*pair)]
        )

    def _with_called(self, waiting: list[tuple[Module, ast.AST]]) -> dict[ast.AST, Module]:
        """Return functions and those that they call."""
        program, found = self._program, dict[ast.AST, Module]()
        waiting = list(waiting)
        while waiting:
            module, function = waiting.pop()
            if function in found:
                continue
            found[function] = module
            for node in own_nodes(function):
                if not isinstance(node, ast.Call):
                    continue
                for where, target in program.targets(module, node):
                    if isinstance(target, FUNCTIONS) and not _is_making(target):
                        waiting.append((where, target))
        return found

    def _is_keras(self, module: Module, function: ast.AST) -> bool:
        """Return whether a function is what Keras calls in the steps of ``fit``, or a lambda."""
        parent = module.parents.get(function)
        if isinstance(parent, ast.ClassDef):
            named = getattr(function, "name", "") in _BY_KERAS
            return named and is_of_keras(self._program, module, parent)
        return isinstance(parent, ast.Call)

    def _runs_in_each(self, module: Module, function: ast.AST) -> bool:
        name = getattr(function, "name", "")
        parent = module.parents.get(function)
        if isinstance(parent, ast.ClassDef):
            kind = self._program.kind_of_class(module, parent)
            if name in (*_BY_KERAS, "__call__") and kind in (Kind.LAYER, Kind.MODEL):
                return True
        if self._program.context.is_decorated(module, function, "tf.function"):
            return True
        if any(site.way == "run" for site in self._program.call_sites(function)):
            return True
        return function in self.functions and any(
            next(self._program.context.loops(site.module, site.call), None) in self.loops
            for site in self._program.call_sites(function)
        )


def _is_in_comprehension(module: Module, node: ast.AST) -> bool:
    for outer in module.around(node):
        if isinstance(outer, ast.stmt):
            return False
        if isinstance(outer, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
            return True
    return False


def _is_making(function: Function) -> bool:
    return getattr(function, "name", "") in ("__init__", "build", "__post_init__")


@functools.lru_cache(maxsize=4)
def steps_of(program: Program) -> Steps:
    """Return where a program trains; it is looked for once."""
    return Steps(program)
