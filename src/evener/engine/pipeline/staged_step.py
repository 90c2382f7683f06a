"""Sharded step with the stage and the pass of every node that the parts compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evener.engine.pipeline.layout import Layout, Stages
from evener.engine.sharding.sharded_step import ShardedStep
from evener.graph.nodes import Node, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedStep:
    """Sharded step with the stage and the pass of every node that the parts compute.

    Attributes:
        sharded: Step; the states of recomputed nodes are entered in its sharding.
        layout: Replicas, stages and micro-batches.
        nodes: Needed nodes, recomputed ones included, in an order in which they can run.
        stages: Stage of each node of the parts; empty without a schedule.
        passes: Pass of each node of the parts; empty without a schedule.
        gates: Tensors that a recomputed node waits for without reading them.
    """

    sharded: ShardedStep
    layout: Layout
    nodes: Sequence[Node]
    stages: Mapping[Node, Stages] = field(default_factory=dict)
    passes: Mapping[Node, str] = field(default_factory=dict)
    gates: Mapping[Node, tuple[Tensor, ...]] = field(default_factory=dict)
