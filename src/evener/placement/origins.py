"""Where each node of a placed graph comes from: the operation that Python made, and its line.

TensorFlow puts the functions that a step calls into one graph and optimizes it. A node knows
the function and the name it had there; what TensorFlow adds by itself (the switches of a
condition, folded constants) does not.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.own_code import is_own
from evener.placement.parts import Line

_TAPES = (
    ("tensorflow/python/eager/imperative_grad.py", "imperative_grad"),
    ("tensorflow/python/ops/gradients_util.py", "_GradientsHelper"),
)
_OPTIMIZERS = ("keras/src/optimizers/", "keras/src/backend/tensorflow/optimizer")
_LOWERED = ("If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase")
# Outside of it, a line is the one that asked for the audit.
_AUDIT = "evener/placement/auditing.py"
_APPLIES = ("apply", "apply_gradients")


class Origins:
    """Answers for the nodes of one placed graph.

    Args:
        functions: The Python graphs, by the names of their functions.
        name: The outermost function.
    """

    def __init__(self, functions: dict[str, tf.Graph], name: str) -> None:
        self._functions = functions
        self._name = name
        self._frames: dict[tf.Operation, list[tuple[str, int, str]]] = {}

    def of(self, node: Any, function: str | None = None) -> tf.Operation | None:
        """Return the operation in Python that a node was, or None.

        Args:
            node: A ``NodeDef``.
            function: The function it is in, if it stands in one that was not taken apart.
        """
        debug = node.experimental_debug_info
        if function is None and debug.original_func_names:
            return self._find(debug.original_func_names[-1], debug.original_node_names[-1])
        return self._find(function or self._name, node.name) or self._lowered(node.name)

    def _lowered(self, name: str) -> tf.Operation | None:
        """Return the condition or loop that a node was a part of, or None."""
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
            # Grappler made it.
            return None

    def frames(self, operation: tf.Operation) -> list[tuple[str, int, str]]:
        """Return the frames in which an operation was made."""
        if operation not in self._frames:
            self._frames[operation] = _tf_private.definition_frames(operation)
        return self._frames[operation]

    def line(self, operation: tf.Operation | None) -> Line | None:
        """Return the innermost own line that made an operation, or None."""
        if operation is None or operation.type == "Placeholder":
            return None
        for file, number, _ in reversed(self.frames(operation)):
            if file.endswith(_AUDIT):
                return None
            if is_own(file):
                return Line(path=file, number=number)
        return None

    def is_of_a_tape(self, operation: tf.Operation) -> bool:
        """Return whether a tape or `tf.gradients` made an operation."""
        return any(
            function == tape and file.endswith(where)
            for file, _, function in self.frames(operation)
            for where, tape in _TAPES
        )

    def is_of_an_optimizer(self, operation: tf.Operation) -> bool:
        """Return whether an operation was made in a Keras optimizer's ``apply``."""
        return any(
            function in _APPLIES and any(part in file for part in _OPTIMIZERS)
            for file, _, function in self.frames(operation)
        )
