"""Uses of a strategy that are refused or warned of, and the note on exhausted memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from evener._tf_private.graphs import written_resources
from evener.auditing import GatheredOperation
from evener.base.text import format_bytes
from evener.devices.names import device_name
from evener.errors import EngineError
from evener.graph.rewrites import CONDITIONS
from evener.partition.emit import PartitionedStep
from evener.partition.report import NEARLY_ALL, StepReport, warn_at_user_line

_DEVICE = re.compile(r"/device:[A-Z]+:\d+")
_MOST_OPERATIONS = 3


def warn_of_one_device(
    function: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    bodies: Iterable[PartitionedStep],
    devices: Sequence[str],
) -> None:
    """Warn if a step that loops over its data trains, and next to nothing of it is in parts."""
    report = StepReport.of(bodies)
    once = sum(report.flops_once.values())
    if len(devices) < 2 or report.flops_of_parts > (1 - NEARLY_ALL) * (
        report.flops_of_parts + once
    ):
        return
    graph = function.get_concrete_function(*args, **kwargs).graph
    trained = {graph.capture(variable.handle).ref() for variable in graph.trainable_variables}
    written = map(written_resources, graph.get_operations())
    if not any(resource.ref() in trained for resources in written for resource in resources):
        return
    conditions = [each for each in report.gathered if each.operation in CONDITIONS]
    if not report.gathered:
        cause = (
            "does not loop `for batch in dataset` or begin with `next(iterator)`, or it draws all "
            "rows itself: only what is given a batch is partitioned"
        )
    elif conditions:
        line = conditions[0].line
        cause = f"its training step is in a condition, as `break` makes one ({line})"
    else:
        first = report.gathered[0]
        cause = f"most of its training step is computed once, behind what is gathered: {first}"
    warn_at_user_line(
        "ENG-093",
        f"{graph.name} trains on {devices[0]} alone, although it was distributed.",
        why=f"It is given no batch, and {cause}.",
        fix="Write `for batch in dataset` without conditions around the training step, or "
        "distribute a step that has the batch as an argument.",
    )


def add_note_on_memory(
    error: tf.errors.ResourceExhaustedError,
    *,
    devices: Sequence[str],
    shares: Sequence[float],
    owned_bytes: Mapping[str, int],
    gathered: Sequence[GatheredOperation],
) -> None:
    """Add ENG-050 to an error: what fills the memory of the device, and what makes it less.

    The error stays what it is. A step is not repeated with less: some of its variables may have
    been updated already.
    """
    match = _DEVICE.search(error.message)
    name = device_name(match.group()) if match else ""
    share = sum(s for device, s in zip(devices, shares, strict=True) if device == name)
    parts = [f"variables that it owns ({format_bytes(owned_bytes.get(name, 0))})"]
    if share:
        parts.append(f"activations of its {share:.0%} of every batch, and weights of other owners")
    if gathered:
        names = ", ".join(map(str, gathered[:_MOST_OPERATIONS]))
        parts.append(f"what is computed once of the samples of all devices ({names})")
    others = ", ".join(repr(device) for device in devices)
    advice = EngineError(
        "ENG-050",
        f"{name or 'A device'} ran out of memory in a step.",
        why=f"It holds {'; '.join(parts)}. Activations are most of it where batches are large.",
        fix="compute fewer samples at once, with the same results: "
        f"plan=evener.Plan.data_parallel([{others}], num_micro_batches=4); or give "
        f"{name or 'the device'} a smaller share; or recompute activations (docs/pipelines.md).",
    )
    error.add_note(str(advice))
