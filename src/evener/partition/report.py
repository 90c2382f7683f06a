"""Report of a partitioned step.

The operations that are computed once, with their source lines; the user's line for messages.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from evener._tf_private.functions import stack
from evener.auditing import GatheredOperation
from evener.base.notebook import ShownAsText
from evener.base.user_code import is_own, short_path
from evener.devices.names import device_name
from evener.errors import EvenerWarning, house_form
from evener.graph.inference import Inference
from evener.graph.nodes import Node, Tensor
from evener.graph.ops.states import Sharded
from evener.graph.rewrites import CONDITIONS, LOOPS, bodies_of, num_leading, open_functions
from evener.partition.emit import PartitionedStep
from evener.partition.memory import node_flops
from evener.partition.tasks import Partition

COUNTED_SAMPLES = 32  # Samples of the batch for which floating-point operations are counted

NEARLY_ALL = 0.9  # The fraction of the work from which one device does nearly all of it

_PARTS = "parts"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport(ShownAsText):
    # Operations that are computed once although their inputs are sharded
    gathered: tuple[GatheredOperation, ...]
    num_operations: int  # Number of operations that the parts compute, of all traces
    # Floating-point operations of the parts together, of all traces, for a batch of
    # `COUNTED_SAMPLES`
    flops_of_parts: float = 0.0
    # Floating-point operations that are computed once, by device, such as ``"gpu:0"``
    flops_once: Mapping[str, float] = field(default_factory=dict)
    # Floating-point operations among them that a single device computes while the others wait
    flops_in_turns: float = 0.0

    def __str__(self) -> str:
        computed = f"{self.num_operations} operations of the parts"
        if not self.gathered:
            return f"{computed}; nothing is gathered"
        lines = dict.fromkeys(f"  {operation}" for operation in self.gathered)
        return "\n".join([f"{computed}; gathered on one device:", *lines])

    @classmethod
    def of(cls, steps: Iterable[PartitionedStep]) -> StepReport:
        gathered: list[GatheredOperation] = []
        count, flops_of_parts, flops_in_turns = 0, 0.0, 0.0
        flops_once: dict[str, float] = defaultdict(float)
        for step in steps:
            partition, sharding = step.partition, step.partition.sharding
            # The work by device of each level of tasks, which may run at the same time.
            by_level: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
            for task in partition.tasks:
                where = _PARTS if task.is_parts else device_name(task.where)
                for node in task.nodes:
                    by_level[task.level][where] += _flops(partition, node)
                    if node in sharding.decisions:
                        count += 1
                        continue
                    tensors = [t for t in node.inputs if isinstance(sharding.states[t], Sharded)]
                    if tensors:
                        gathered.append(_describe(node, tensors))
            for flops in by_level.values():
                total, of_parts = sum(flops.values()), flops.pop(_PARTS, 0.0)
                if max(flops.values(), default=0.0) > NEARLY_ALL * total:
                    flops_in_turns += total
                flops_of_parts += of_parts
                for device, work in flops.items():
                    flops_once[device] += work
        return cls(
            gathered=tuple(gathered),
            num_operations=count,
            flops_of_parts=flops_of_parts,
            flops_once=flops_once,
            flops_in_turns=flops_in_turns,
        )

    @classmethod
    def merged(cls, reports: Iterable[StepReport]) -> StepReport:
        reports = list(reports)
        flops_once: dict[str, float] = defaultdict(float)
        for report in reports:
            for device, work in report.flops_once.items():
                flops_once[device] += work
        return cls(
            gathered=tuple(operation for report in reports for operation in report.gathered),
            num_operations=sum(report.num_operations for report in reports),
            flops_of_parts=sum(report.flops_of_parts for report in reports),
            flops_once=flops_once,
            flops_in_turns=sum(report.flops_in_turns for report in reports),
        )


def _flops(partition: Partition, node: Node) -> float:
    """Return the floating-point operations of a node, with those of bodies that change state."""
    if node.op not in LOOPS | CONDITIONS or node.bodies:
        return node_flops(node, COUNTED_SAMPLES)
    of_bodies = [0.0]
    for body in bodies_of(node, partition.graph).values():
        for inner, outer in zip(body.inputs, node.inputs[num_leading(node) :], strict=True):
            inner.shape, inner.value = outer.shape, outer.value
        open_functions(body)
        # The sizes around the body are made of symbols of the step.
        Inference(symbols=dict(partition.inference.symbols)).run(body)
        of_bodies.append(sum(node_flops(inner, COUNTED_SAMPLES) for inner in body))
    return max(of_bodies)


def _describe(node: Node, tensors: list[Tensor]) -> GatheredOperation:
    counts = [math.prod(n for n in tensor.shape or () if isinstance(n, int)) for tensor in tensors]
    bytes_per_sample = sum(n * t.dtype.size for n, t in zip(counts, tensors, strict=True))
    return GatheredOperation(
        operation=node.op,
        name=node.name,
        line=line_of(node),
        num_bytes=bytes_per_sample if all(tensor.dtype.size for tensor in tensors) else None,
    )


def line_of(node: Node) -> str:
    """Return the line of a person's own program that made an operation."""
    if node.source is None:
        return ""
    graph, name = node.source
    for frame in reversed(graph.get_operation_by_name(name).traceback or ()):
        if is_own(frame.filename):
            return f"{short_path(frame.filename)}:{frame.lineno}"
    return ""


class ProgramLine(NamedTuple):
    file: str  # Its path
    number: int  # Counted from 1

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


def user_line() -> ProgramLine:
    """Return the innermost line of a person's own code, through what AutoGraph has rewritten."""
    for file, number in reversed(stack()):
        if is_own(file):
            return ProgramLine(file, number)
    return ProgramLine("<unknown>", 0)


def warn_at_user_line(code: str, what: str, *, why: str, fix: str) -> None:
    """Warn in the house form, at the line of the person's program."""
    line = user_line()
    text = house_form(code, what, f"{why}\nAt: {line}", fix)
    warnings.warn_explicit(EvenerWarning(text), EvenerWarning, line.file, line.number)
