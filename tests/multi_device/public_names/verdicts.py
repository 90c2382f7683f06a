"""Partitioning of calls of a public name, and whether their numbers are those of one device."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

import evener
from evener.graph.nodes import Node
from evener.graph.ops.states import Numbers, Partial, Sharded
from evener.graph.trace import trace_step
from evener.partition.emit import PartitionedStep, partition_step
from evener.partition.layout import Layout
from evener.partition.report import StepReport
from evener.partition.tasks import Partition
from multi_device.public_names.recipe import Function, Recipe
from unit.graph.ops.op_case import B

DEVICES = ("cpu:0", "cpu:1", "cpu:2")
SHARES = (4, 0, 3)
GRADIENT_SCOPE = "gradient_tape/"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """State of a call's results on the parts of a step, and operations that are computed once.

    Attributes:
        state: ``"sharded"``, ``"partial"``, ``"replicated"``, or several of them.
        gathered: The types of operations that are computed once, although their inputs are sharded.
        in_gradient: The same for the gradient alone.
        has_gradient: Whether there is a gradient by any argument or weight.
    """

    state: str
    gathered: tuple[str, ...]
    in_gradient: tuple[str, ...]
    has_gradient: bool


class Call:
    """A recipe that was made, with arguments."""

    def __init__(self, path: str, recipe: Recipe) -> None:
        self.recipe = recipe
        self.in_axes = tuple(a.shape.index(B) if B in a.shape else None for a in recipe.args)
        self.tensors = [self._tensor(path, k) for k in range(len(recipe.args))]
        self.num_results = 0
        self._variables: list[Any] = []
        # Layers make their weights when they are called first.
        with tf.device("CPU:0"), tf.variable_creator_scope(self._created):
            self.function: Function = recipe.make()
            tf.function(self.function, autograph=False)(*self.tensors)
        self._values = [variable.numpy() for variable in self._variables]

    def _created(self, create: Function, **kwargs: Any) -> Any:
        variable = create(**kwargs)
        self._variables.append(variable)
        return variable

    def _tensor(self, path: str, index: int) -> tf.Tensor:
        arg = self.recipe.args[index]
        rng = np.random.default_rng([index, zlib.crc32(path.encode())])
        shape = tuple(size if isinstance(size, int) else sum(SHARES) for size in arg.shape)
        value = np.asarray(arg.values(rng, shape, sum(SHARES)))
        return tf.constant(value if arg.dtype == "S" else value.astype(arg.dtype))

    def specs(self) -> list[tf.TensorSpec]:
        return [
            tf.TensorSpec([None if s == B else s for s in arg.shape], tensor.dtype)
            for arg, tensor in zip(self.recipe.args, self.tensors, strict=True)
        ]

    def forward(self, *tensors: Any) -> list[Any]:
        return flat(self.function(*tensors))

    def both(self, *tensors: Any) -> list[Any]:
        """Return the results, and gradients by all arguments and weights."""
        given = tensors[self.recipe.by :]
        by = [tensor for tensor in given if tensor.dtype.is_floating or tensor.dtype.is_complex]
        by += [variable for variable in self._variables if variable.trainable]
        with tf.GradientTape() as tape:
            tape.watch([tensor for tensor in by if not isinstance(tensor, tf.Variable)])
            results = self.forward(*tensors)
            self.num_results = len(results)
            smooth = [y for y in results if y.dtype.is_floating or y.dtype.is_complex]
            if not smooth or not by:
                return results
            heads = [y * tf.cast(tf.nn.softsign(real(y)) + 0.5, y.dtype) for y in smooth]
        gradients = tape.gradient(heads, by)
        return results + [tf.convert_to_tensor(g) for g in gradients if g is not None]

    def reset(self) -> None:
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)

    def step(self) -> Function:
        """Return the results, with gradients where they are asked for."""
        return self.both if self.recipe.gradient else self.forward


def real(y: Any) -> Any:
    return tf.math.real(y) if y.dtype.is_complex else y


def flat(results: Any) -> list[Any]:
    leaves = tf.nest.flatten(results, expand_composites=True)
    return [tf.convert_to_tensor(leaf) for leaf in leaves if leaf is not None]


def verdict(call: Call) -> Verdict:
    """Partition a call for batches of any size."""
    return verdict_of(call, partitioned(call, call.step()))


def verdict_of(call: Call, step: PartitionedStep) -> Verdict:
    gathered = StepReport.of([step]).gathered
    found: dict[bool, set[str]] = {False: set(), True: set()}
    for entry in gathered:
        found[GRADIENT_SCOPE in entry.name].add(entry.operation)
    partition = step.partition
    for task in partition.tasks:
        for node in task.nodes:
            if is_gathered_by_parts(partition, node):
                found[GRADIENT_SCOPE in node.name].add(node.op)
    outputs = partition.graph.outputs
    num_results = call.num_results or len(outputs)
    return Verdict(
        state=", ".join(
            sorted({named(partition.sharding.states[t]) for t in outputs[:num_results]})
        ),
        gathered=tuple(sorted(found[False])),
        in_gradient=tuple(sorted(found[True])),
        has_gradient=len(outputs) > num_results,
    )


def is_gathered_by_parts(partition: Partition, node: Node) -> bool:
    """Return whether parts compute a node, but need rows of other parts for it."""
    if node not in partition.sharding.decisions:
        return False
    return any(
        isinstance(state, Sharded) and not isinstance(wanted, Numbers) and state != wanted
        for tensor, wanted in partition.requests(node)
        if not tensor.is_sizes
        for state in [partition.sharding.states[tensor]]
    )


def named(state: Any) -> str:
    if isinstance(state, Sharded):
        return "sharded"
    return "partial" if isinstance(state, Partial) else "replicated"


def partitioned(call: Call, function: Function) -> PartitionedStep:
    traced = trace_step(function, call.specs(), call.in_axes, autograph=False)
    return partition_step(traced, Layout.of_devices(DEVICES))


def difference(call: Call) -> tuple[float, Verdict]:
    """Return how far the parts' numbers are from one device's, relative to the largest.

    The verdict is of the step that ran. On one device it is called operation by operation, which
    takes less time than a trace; where numbers depend on the graph, it is traced.
    """
    function = tf.autograph.experimental.do_not_convert(call.step())
    call.reset()
    step = evener.distribute(
        function, devices=list(DEVICES), shares=list(SHARES), in_axes=call.in_axes
    )
    given = step(*call.tensors)
    for single in (function, tf.function(function, autograph=False)):
        call.reset()
        with tf.device("CPU:0"):
            expected = single(*call.tensors)
        pairs = zip(given, expected, strict=True)
        largest = max((_distance(left, right) for left, right in pairs), default=0.0)
        if largest <= call.recipe.tolerance:
            break
    return largest, verdict_of(call, step.partitioned_steps[-1])


def _distance(given: Any, expected: Any) -> float:
    if given.shape != expected.shape or given.dtype != expected.dtype:
        return float("inf")
    a, b = given.numpy(), expected.numpy()
    if b.dtype.kind not in "fc":
        return float(not np.array_equal(a, b))
    a, b = (x.astype("complex128" if x.dtype.kind == "c" else "float64") for x in (a, b))
    same = (a == b) | ((a != a) & (b != b))
    if same.all():
        return 0.0
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0, np.abs(a - b))
    largest = np.max(np.abs(b[np.isfinite(b)]), initial=0.01)
    return float(np.max(error) / largest) if np.isfinite(error).all() else float("inf")
