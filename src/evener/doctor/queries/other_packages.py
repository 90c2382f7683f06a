"""Parts of packages beside TensorFlow and Keras that do not work with Keras 3."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Call
from evener.doctor.queries.guards import is_guarded
from evener.doctor.queries.removed_names import (
    Missing,
    has_objects_of_keras_two,
    imported,
    is_judged,
)
from evener.doctor.rule import Case

ADDONS = "tensorflow_addons"


def uses_of_addons(case: Case) -> Iterator[Missing]:
    """Yield the imports of `tensorflow_addons`, and what a program uses of it."""
    program = case.program
    if not is_judged(case) or any(module.name == ADDONS for module in program.modules):
        return
    for module, node in program.nodes(ast.Import, ast.ImportFrom):
        names = [name for name in imported(node) if _is_of(ADDONS, name)]
        if names and not is_guarded(program, module, node):
            name = names[0] if isinstance(node, ast.ImportFrom) else ADDONS
            yield Missing(module=module, node=node, name=name, is_import=True)
    for module, node in program.nodes(ast.Attribute):
        if isinstance(module.parents.get(node), ast.Attribute):
            continue
        names = sorted(program.written_names(module, node))
        if all(_is_of(ADDONS, name) for name in names) and not is_guarded(program, module, node):
            yield Missing(module=module, node=node, name=names[0], is_import=False)


def layers_of_hub(case: Case) -> Iterator[Call]:
    """Yield the calls of `tensorflow_hub.KerasLayer` in programs that use Keras 3."""
    program = case.program
    if not is_judged(case) or has_objects_of_keras_two(case):
        return
    for call in program.calls("tensorflow_hub.KerasLayer"):
        if not is_guarded(program, call.module, call.node):
            yield call


def _is_of(package: str, name: str) -> bool:
    return name == package or name.startswith(f"{package}.")
