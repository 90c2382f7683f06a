"""What a partitioned step does not compute in parts, with the line that asked for it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from evener.engine.partition import PartitionedStep
from evener.engine.partition.tasks import Partition
from evener.engine.trace.graph import Node, Tensor
from evener.own_code import is_own, short_path
from evener.tf_compat.gathered import GatheredOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """How a step was partitioned.

    Attributes:
        gathered: The operations that are computed once although their inputs are sharded.
        num_operations: How many operations the parts compute, of all traces.
    """

    gathered: tuple[GatheredOperation, ...]
    num_operations: int

    @classmethod
    def of(cls, steps: Iterable[PartitionedStep]) -> StepReport:
        """Return the report of partitioned steps."""
        gathered: list[GatheredOperation] = []
        count = 0
        for step in steps:
            partition = step.partition
            for task in partition.tasks:
                for node in task.nodes:
                    count += node in partition.sharding.decisions
                    tensors = partition.sharding.gathers(node)
                    if tensors:
                        gathered.append(_describe(partition, node, tensors))
        return cls(gathered=tuple(gathered), num_operations=count)

    @classmethod
    def merged(cls, reports: Iterable[StepReport]) -> StepReport:
        """Return one report of several."""
        reports = list(reports)
        return cls(
            gathered=tuple(one for report in reports for one in report.gathered),
            num_operations=sum(report.num_operations for report in reports),
        )


def _describe(partition: Partition, node: Node, tensors: list[Tensor]) -> GatheredOperation:
    sizes = [_bytes_per_sample(tensor) for tensor in tensors]
    known = [size for size in sizes if size is not None]
    return GatheredOperation(
        operation=node.op,
        name=node.name,
        line=line_of(node),
        num_bytes=sum(known) if len(known) == len(sizes) else None,
    )


def _bytes_per_sample(tensor: Tensor) -> int | None:
    sizes = [size for size in tensor.shape or () if isinstance(size, int)]
    return math.prod(sizes) * tensor.dtype.size if tensor.dtype.size else None


def line_of(node: Node) -> str:
    """Return the line of a person's own program that made an operation."""
    if node.source is None:
        return ""
    graph, name = node.source
    for frame in reversed(graph.get_operation_by_name(name).traceback or ()):
        if is_own(frame.filename):
            return f"{short_path(frame.filename)}:{frame.lineno}"
    return ""
