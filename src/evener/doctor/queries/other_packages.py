"""Parts of packages beside TensorFlow and Keras that do not work with Keras 3."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Call, Kind, Location, Module, Program
from evener.doctor.queries.guards import is_guarded
from evener.doctor.queries.removed_names import has_objects_of_keras_two, imported, is_judged
from evener.doctor.queries.symbolic import is_symbolic
from evener.doctor.rule import Case

ADDONS = "tensorflow_addons"


def imports_of_addons(case: Case) -> Iterator[Location]:
    """Yield the lines that import `tensorflow_addons`."""
    program = case.program
    if not is_judged(case) or any(module.name == ADDONS for module in program.modules):
        return
    for module, node in program.nodes(ast.Import, ast.ImportFrom):
        if any(_is_of_addons(name) for name in imported(node)):
            if not is_guarded(program, module, node):
                yield module.location(node)


def names_of_addons(program: Program) -> list[str]:
    """Return the full names that a program uses of `tensorflow_addons`, or imports from it."""
    found = [
        name
        for module, node in program.nodes(ast.Attribute)
        if not isinstance(module.parents.get(node), ast.Attribute)
        for name in program.written_names(module, node)
    ]
    for _, node in program.nodes(ast.ImportFrom):
        found += imported(node)
    return sorted({name for name in found if _is_of_addons(name)})


def layers_of_hub(case: Case) -> Iterator[Call]:
    """Yield the calls of `tensorflow_hub.KerasLayer` whose layers models of Keras 3 are given."""
    program = case.program
    if not is_judged(case) or has_objects_of_keras_two(case):
        return
    made = [*program.calls("tensorflow_hub.KerasLayer")]
    if not made:
        return
    used = {
        value.node
        for module, layer in _layers_of_models(program)
        for value in program.origins(module, layer)
    }
    for call in made:
        if call.node in used and not is_guarded(program, call.module, call.node):
            yield call


def _layers_of_models(program: Program) -> Iterator[tuple[Module, ast.expr]]:
    """Yield the layers that models are made of, and what is called with a symbolic tensor."""
    for call in program.calls("keras.Sequential", "keras.models.Sequential"):
        layers = call.argument(0, "layers")
        for layer in layers.elts if isinstance(layers, ast.List | ast.Tuple) else ():
            yield call.module, layer
    for call, owner in program.calls_of("add"):
        layer = call.argument(0, "layer")
        if layer is not None and Kind.MODEL in program.kinds(call.module, owner):
            yield call.module, layer
    for call in program.all_calls:
        if call.node.args and is_symbolic(program, call.module, call.node.args[0]):
            yield call.module, call.node.func


def _is_of_addons(name: str) -> bool:
    return name == ADDONS or name.startswith(f"{ADDONS}.")
