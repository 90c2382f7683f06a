"""Warning about steps with a loop over data in which one device trains alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evener._tf_private.graphs import written_resources
from evener.engine.origin import warn_at_user_line
from evener.engine.partition.emit import PartitionedStep
from evener.engine.report import NEARLY_ALL, StepReport
from evener.engine.trace.functional import CONDITIONS


def warn_of_one_device(
    function: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    bodies: Iterable[PartitionedStep],
    devices: Sequence[str],
) -> None:
    """Warn if a step that loops over its data trains, and next to nothing of it is in parts.

    Args:
        function: Traced step, which was called.
        args: Arguments of the call.
        kwargs: Keyword arguments of the call.
        bodies: Bodies of its loops, partitioned.
        devices: Names of the devices.
    """
    report = StepReport.of(bodies)
    once = sum(report.flops_once.values())
    if len(devices) < 2 or report.flops_of_parts > (1 - NEARLY_ALL) * (
        report.flops_of_parts + once
    ):
        return
    graph = function.get_concrete_function(*args, **kwargs).graph
    if not _trains(graph):
        return
    warn_at_user_line(
        "ENG-093",
        f"{graph.name} trains on {devices[0]} alone, although it was distributed.",
        why=f"It is given no batch, and {_cause(report)}.",
        fix="Write `for batch in dataset` without conditions around the training step, or "
        "distribute a step that has the batch as an argument.",
    )


def _cause(report: StepReport) -> str:
    if not report.gathered:
        return (
            "does not loop `for batch in dataset` or begin with `next(iterator)`, or it draws all "
            "rows itself: only what is given a batch is partitioned"
        )
    conditions = [found for found in report.gathered if found.operation in CONDITIONS]
    if conditions:
        return f"its training step is in a condition, as `break` makes one ({conditions[0].line})"
    return (
        f"most of its training step is computed once, behind what is gathered: {report.gathered[0]}"
    )


def _trains(graph: Any) -> bool:
    """Return whether a traced function, or one that it calls, writes a trainable variable."""
    trained = {graph.capture(variable.handle).ref() for variable in graph.trainable_variables}
    written = map(written_resources, graph.get_operations())
    return any(resource.ref() in trained for resources in written for resource in resources)
