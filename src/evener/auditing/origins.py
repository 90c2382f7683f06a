"""The Python operation behind each node of a placed graph, and the source line that made it.

TensorFlow inlines the functions that a step calls into one graph and optimizes it. A node records
the function and the name it had there; nodes that TensorFlow adds (the switches of a condition,
folded constants) do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from evener._tf_private.source_lines import definition_frames
from evener.auditing.records import Line
from evener.own_code import is_own

_TAPES = (
    ("tensorflow/python/eager/imperative_grad.py", "imperative_grad"),
    ("tensorflow/python/ops/gradients_util.py", "_GradientsHelper"),
)
_OPTIMIZERS = ("keras/src/optimizers/", "keras/src/backend/tensorflow/optimizer")
_LOWERED = ("If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase")
# Frames outside of it belong to the call of the audit.
_AUDIT = str(Path(__file__).with_name("step_audit.py"))
_APPLIES = ("apply", "apply_gradients")


class Origins:
    """Finds the Python operations behind the nodes of one placed graph.

    Args:
        functions: The Python graphs, by the names of their functions.
        name: The outermost function.
    """

    def __init__(self, functions: dict[str, tf.Graph], name: str) -> None:
        self._functions = functions
        self._name = name
        self._frames: dict[tf.Operation, list[tuple[str, int, str]]] = {}

    def of(self, node: Any, function: str | None = None) -> tf.Operation | None:
        """Return the Python operation behind a node, or None.

        Args:
            node: A ``NodeDef``.
            function: The function that contains it, if that was not inlined.
        """
        debug = node.experimental_debug_info
        if function is None and debug.original_func_names:
            return self._find(debug.original_func_names[-1], debug.original_node_names[-1])
        return self._find(function or self._name, node.name) or self._lowered(node.name)

    def _lowered(self, name: str) -> tf.Operation | None:
        """Return the condition or loop that a node was lowered from, or None."""
        while "/" in name:
            name = name.rpartition("/")[0]
            operation = self._find(self._name, name)
            if operation is not None:
                return operation if operation.type in _LOWERED else None
        return None

    def _find(self, function: str, name: str) -> tf.Operation | None:
        graph = self._functions.get(function)
        if graph is None:
            return None
        try:
            return graph.get_operation_by_name(name)
        except (KeyError, ValueError):
            # Grappler added it.
            return None

    def frames(self, operation: tf.Operation) -> list[tuple[str, int, str]]:
        """Return the stack frames in which an operation was made: file, line, function."""
        if operation not in self._frames:
            self._frames[operation] = definition_frames(operation)
        return self._frames[operation]

    def line(self, operation: tf.Operation | None) -> Line | None:
        """Return the innermost line of user code that made an operation, or None."""
        if operation is None or operation.type == "Placeholder":
            return None
        for file, number, _ in reversed(self.frames(operation)):
            if file == _AUDIT:
                return None
            if is_own(file):
                return Line(path=file, number=number)
        return None

    def is_made_by_tape(self, operation: tf.Operation) -> bool:
        """Return whether a tape or `tf.gradients` made an operation."""
        return any(
            function == tape and file.endswith(where)
            for file, _, function in self.frames(operation)
            for where, tape in _TAPES
        )

    def is_made_by_optimizer(self, operation: tf.Operation) -> bool:
        """Return whether the ``apply`` of a Keras optimizer made an operation."""
        return any(
            function in _APPLIES and any(part in file for part in _OPTIMIZERS)
            for file, _, function in self.frames(operation)
        )
