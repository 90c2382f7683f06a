"""All passes, one after the other: from a traced step to one that runs on several devices."""

from __future__ import annotations

from collections.abc import Iterable

from evener.devices.names import canonical_device
from evener.engine.partition.emit import PartitionedStep
from evener.engine.partition.homes import HOST
from evener.engine.partition.reads import merge_reads
from evener.engine.partition.tasks import make_tasks
from evener.engine.pipeline.layout import Layout
from evener.engine.pipeline.stages import Scopes
from evener.engine.sharding.propagate import propagate
from evener.engine.trace.step import TracedStep
from evener.graph.nodes import Tensor
from evener.ops.states import Sharded


def partition_step(
    traced: TracedStep, layout: Layout, variables: Iterable[str] = ()
) -> PartitionedStep:
    """Partition a traced step over devices.

    Args:
        traced: The step.
        layout: The parts.
        variables: Paths of variables of the same program, whose layers a plan may name too.

    Raises:
        EngineError: ENG-041 or ENG-042 if stages do not fit the layers of the step.
    """
    scopes = Scopes(traced.scopes)
    if layout.is_scheduled:
        scopes.check(layout, variables)
    graph = traced.graph
    merge_reads(graph)
    states = {
        tensor: Sharded(axis)
        for tensor, axis in zip(graph.inputs, traced.batch_axes, strict=False)
        if axis is not None
    }
    # Micro-batches and statistics of devices are made of samples alone.
    is_plain = not layout.is_scheduled and layout.batch_norm == "synchronized"
    given = graph.inputs[: len(traced.batch_axes)] if is_plain else None
    captured = dict(zip(graph.inputs[len(traced.batch_axes) :], traced.captures, strict=True))

    def owner_of(tensor: Tensor) -> str:
        value = captured.get(tensor)
        return canonical_device(getattr(value, "device", "")) or HOST

    partition = make_tasks(
        graph,
        propagate(graph, states, traced.inference.symbols, given=given),
        traced.inference,
        owner_of=owner_of,
        layout=layout,
        scopes=scopes,
    )
    return PartitionedStep(partition, keeps=traced.concrete)
