"""The road of a step: from a traced step to one that runs on several devices.

::

    traced ──► sharded ──► staged ──► partition in tasks ──► partitioned step
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from evener.devices.names import canonical_device
from evener.engine.partition.emit import PartitionedStep
from evener.engine.partition.homes import HOST
from evener.engine.partition.tasks import make_tasks
from evener.engine.pipeline.layout import Layout
from evener.engine.pipeline.scopes import Scopes
from evener.engine.pipeline.staging import stage_step
from evener.engine.sharding.sharded_step import shard_step
from evener.engine.trace.step import TracedStep
from evener.graph.nodes import Tensor


def partition_step(
    traced: TracedStep,
    layout: Layout,
    variables: Iterable[str] = (),
    owner_of_handle: Callable[[Any], str | None] = lambda _: None,
) -> PartitionedStep:
    """Partition a traced step over devices.

    Args:
        traced: Step; its graph is changed.
        layout: Replicas, stages and micro-batches.
        variables: Paths of variables of the same program, whose layers a plan may name too.
        owner_of_handle: Returns the device that owns a variable in the common partition of several
            workers, by its handle; None for the device where it is.

    Raises:
        EngineError: ENG-041 or ENG-042 if stages do not fit the layers of the step.
    """
    scopes, owner_of = Scopes(traced.scopes), _owners(traced, owner_of_handle)
    if layout.is_scheduled:
        scopes.check(layout, variables)
    # Micro-batches and statistics of devices are made of samples alone.
    splits_rows = not layout.is_scheduled and layout.batch_norm == "synchronized"
    sharded = shard_step(traced, splits_rows=splits_rows)
    staged = stage_step(sharded, layout, scopes)
    partition = make_tasks(staged, owner_of)
    others = [traced.streams.counters] if traced.streams else []
    captures = [*traced.capture_inputs, *others]
    return PartitionedStep(partition, keeps=traced.concrete, captures=captures)


def _owners(
    traced: TracedStep, owner_of_handle: Callable[[Any], str | None]
) -> Callable[[Tensor], str]:
    """Return a function that returns the device of a variable, by the argument of its handle."""
    captured = dict(zip(traced.capture_inputs, traced.captures, strict=True))

    def owner_of(tensor: Tensor) -> str:
        value = captured.get(tensor)
        known = None if value is None else owner_of_handle(value)
        return canonical_device(known or getattr(value, "device", "")) or HOST

    return owner_of
