"""Verification: the first run of a step is also computed on one device, and compared.

::

    first run      snapshot -> step on one device -> results, variables to the host -> put back
                                                                                  |
    every run      the partitioned step                                           v
    first run                             -> results, variables to the host -> compare, print

It is a part of the graph of the step, so it runs wherever a step runs: in Keras's ``fit``, in
custom loops, in `evener.distribute`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from evener.checking.differences import magnitude, relative_difference
from evener.engine.origin import warn_at_user_line
from evener.engine.partition.homes import HOST
from evener.errors import EngineError, warn
from evener.graph.nodes import Graph, Node, Tensor

VARIABLE = "EVENER_VERIFY"
"""Environment variable that decides for steps whose ``verify`` is None."""
LARGEST_ROUNDING = 1e-4
"""A larger relative difference in a float32 step is more than rounding."""
_SMALLEST = 1e-3
_HARMLESS = ("Assert", "NoOp", "Print", "PrintV2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Differences of a partitioned step and the same step on one device.

    Attributes:
        results: Largest difference of the results, relative to the largest number of each tensor.
        variables: Largest difference of the variables after the step, relative in the same way.
    """

    results: float
    variables: float

    def __str__(self) -> str:
        return (
            "Verified against one device: results differ by at most "
            f"{self.results:.1e}, variables by {self.variables:.1e} (relative)."
        )


def chosen_verification(verify: bool | None) -> bool | None:
    """Return the verification of steps: the one asked for, else that of ``EVENER_VERIFY``.

    Args:
        verify: True for the first run of every step, False for none, None for a few samples unless
            the environment says 1 or 0.

    Raises:
        EngineError: ENG-012 if the environment says something else.
    """
    text = os.environ.get(VARIABLE, "")
    if verify is not None or not text:
        return verify
    if text not in ("0", "1"):
        raise EngineError(
            "ENG-012",
            f"{VARIABLE} is {text!r}.",
            why="1 compares the first run of every step with one device, 0 compares nothing.",
            fix=f"Set {VARIABLE} to 0 or 1, or unset it for a check of a few samples.",
        )
    return text == "1"


class Verifier:
    """Compares the first run of a step with the same step on one device.

    Args:
        when_compared: Function that is called with the differences.
    """

    def __init__(self, when_compared: Callable[[Verification], None]) -> None:
        self._when_compared = when_compared
        self._is_begun = False
        self._expected: list[np.ndarray] = []

    def run(
        self,
        plain: Callable[[], Sequence[Any]],
        partitioned: Callable[[], Sequence[Any]],
        variables: Sequence[tf.Variable],
    ) -> Sequence[Any]:
        """Run a step in the graph that is being made; in its first run, on one device as well.

        Args:
            plain: Function that runs it on one device, and returns flat tensors.
            partitioned: Function that runs it on all devices, and returns the same tensors.
            variables: Variables that the step may change.

        Returns:
            Results of the partitioned step.
        """
        is_first = self._on_host(self._begins, [], tf.bool)

        def on_one_device() -> tf.Tensor:
            before = [variable.read_value() for variable in variables]
            with tf.control_dependencies(before):
                results = _numbers(plain())
            with tf.control_dependencies(results):
                after = [variable.read_value() for variable in variables]
            kept = self._on_host(self._keep, [*results, *after], tf.bool)
            with tf.control_dependencies([kept]):
                puts = [
                    variable.assign(value, read_value=False)
                    for variable, value in zip(variables, before, strict=True)
                ]
            with tf.control_dependencies(puts):
                return tf.identity(kept)

        is_done = tf.cond(is_first, on_one_device, lambda: tf.constant(False))
        with tf.control_dependencies([is_done]):
            results = partitioned()
        numbers = _numbers(results)

        def compare() -> tf.Tensor:
            after = [variable.read_value() for variable in variables]
            return self._on_host(
                lambda *found: self._compare(found, len(numbers)), [*numbers, *after], tf.bool
            )

        with tf.control_dependencies(numbers):
            tf.cond(is_first, compare, lambda: tf.constant(False))
        return results

    @staticmethod
    def _on_host(function: Callable[..., Any], tensors: Sequence[Any], dtype: tf.DType) -> Any:
        with tf.device(HOST):
            return tf.numpy_function(function, tensors, dtype, stateful=True)

    def _begins(self) -> bool:
        is_first, self._is_begun = not self._is_begun, True
        return is_first

    def _keep(self, *arrays: np.ndarray) -> bool:
        # TensorFlow may use the memory again.
        self._expected = [np.array(array) for array in arrays]
        return True

    def _compare(self, arrays: Sequence[np.ndarray], num_results: int) -> bool:
        expected, self._expected = self._expected, []
        found = Verification(
            results=_largest(expected[:num_results], arrays[:num_results]),
            variables=_largest(expected[num_results:], arrays[num_results:]),
        )
        print(f"evener: {found}", file=sys.stderr)
        self._when_compared(found)
        if not max(found.results, found.variables) <= LARGEST_ROUNDING:
            warn(
                "ENG-080",
                "The first step differs from the same step on one device. " + str(found),
                why="The difference is more than rounding, unless the step is very sensitive to "
                "it. (The first update of Adam has the size of the learning rate wherever a "
                "gradient is 0 but for rounding.) BatchNormalization differs where "
                'batch_norm="per_device" was chosen, which is not exact.',
                fix="Run the step in float64 to tell. If the difference stays, this is a fault "
                "of evener: please report it, with strategy.report() or step.report().",
            )
        return True


def can_run_twice(graph: Graph, variables: Collection[Tensor]) -> bool:
    """Return whether a step can be computed once more, and warn if not.

    Args:
        graph: Graph of the step.
        variables: Arguments that are handles of variables, which are put back.
    """
    node = next(_not_put_back(graph.nodes, variables), None)
    if node is None:
        return True
    warn_at_user_line(
        "ENG-087",
        "A step cannot be verified: it would not run on one device as it runs without "
        "verification.",
        why=f"It has the operation {node.op} ({node.name}), which changes or draws from what is "
        "not a variable, so its effect cannot be undone.",
        fix="Verify a step without it; for random numbers, use tf.random.Generator or a seed of "
        "Keras's.",
    )
    return False


def _not_put_back(nodes: Iterable[Node], variables: Collection[Tensor]) -> Iterator[Node]:
    """Yield the operations whose effects stay when variables are put back."""
    for node in nodes:
        if not node.has_side_effect or node.op in _HARMLESS:
            continue
        resources = [tensor for tensor in node.inputs if tensor.dtype == tf.resource]
        if any(tensor not in variables for tensor in resources):
            yield node
        elif node.bodies:
            for body in node.bodies.values():
                handles = [tensor for tensor in body.inputs if tensor.dtype == tf.resource]
                yield from _not_put_back(body.nodes, handles)
        elif not resources:
            yield node


def _numbers(tensors: Sequence[Any]) -> list[Any]:
    return [tensor for tensor in tensors if tensor.dtype not in (tf.resource, tf.variant)]


def _largest(expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]) -> float:
    # Numbers that are 0 but for rounding, such as the gradient of a bias before a normalisation,
    # are no measure of themselves.
    least = _SMALLEST * max((magnitude(array) for array in expected), default=0.0)
    pairs = zip(expected, actual, strict=True)
    return max((relative_difference(*pair, least) for pair in pairs), default=0.0)
