"""Imports of TensorFlow and Keras."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from evener.analysis import Location, Module, Program

# What imports TensorFlow, or Keras, in its turn.
_KERAS = ("keras", "keras_hub", "keras_nlp", "keras_cv", "keras_tuner", "kerastuner")
_TENSORFLOW = (
    "tensorflow",
    "tf_keras",
    "tensorflow_hub",
    "tensorflow_probability",
    "tensorflow_addons",
    "tensorflow_text",
    "tensorflow_models",
    "official",
    *_KERAS,
)


@lru_cache(maxsize=4)
def imports(program: Program, *, of_keras: bool = False) -> tuple[tuple[Module, ast.stmt], ...]:
    """Return the imports that load TensorFlow, in the order in which they run.

    Args:
        program: The program.
        of_keras: Only those that load Keras: TensorFlow loads it when it is first used.
    """
    found = [
        (order, module, node)
        for module, node in _statements(program)
        if (order := program.order.of(node)) is not None and _loads(node, of_keras)
    ]
    return tuple(
        (module, node)
        for _, module, node in sorted(found, key=lambda found_import: found_import[0])
    )


def first_import(program: Program) -> Location | None:
    """Return the first line that imports TensorFlow, or None."""
    found = imports(program)
    if found:
        module, node = found[0]
        return module.location(node)
    anywhere = [(m, n) for m, n in _statements(program) if _loads(n, False)]
    return anywhere[0][0].location(anywhere[0][1]) if anywhere else None


def _statements(program: Program) -> Iterator[tuple[Module, ast.stmt]]:
    for module, node in program.nodes(ast.Import, ast.ImportFrom):
        assert isinstance(node, ast.Import | ast.ImportFrom)
        yield module, node


def _loads(node: ast.stmt, of_keras: bool) -> bool:
    names = _names(node)
    if of_keras:
        return any(
            name.partition(".")[0] in _KERAS or name.startswith("tensorflow.keras.")
            for name in names
        )
    return any(name.partition(".")[0] in _TENSORFLOW for name in names)


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        base = node.module or ""
        return [f"{base}.{alias.name}" for alias in node.names]
    return []
