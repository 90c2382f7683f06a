"""From a sharded step to a staged one: stages, passes, recomputation."""

from __future__ import annotations

from evener.engine.pipeline.layout import Layout
from evener.engine.pipeline.passes import find_passes, separate_weights
from evener.engine.pipeline.recompute import recompute
from evener.engine.pipeline.scopes import Scopes
from evener.engine.pipeline.staged_step import StagedStep
from evener.engine.pipeline.stages import find_stages
from evener.engine.sharding.sharded_step import ShardedStep


def stage_step(sharded: ShardedStep, layout: Layout, scopes: Scopes) -> StagedStep:
    """Give every node that the parts compute a stage and a pass, if the layout has a schedule.

    Args:
        sharded: Step; with recomputation, nodes of its backward pass read copies afterwards.
        layout: Replicas, stages and micro-batches.
        scopes: Layers of the nodes.

    Raises:
        EngineError: ENG-041 if two stages of a replica name one layer.
    """
    nodes = sharded.nodes
    if not layout.is_scheduled:
        return StagedStep(sharded=sharded, layout=layout, nodes=nodes)
    stages = find_stages(nodes, sharded.sharding, layout, scopes)
    passes = find_passes(nodes, sharded.sharding)
    if any(replica.schedule == "zero_bubble" for replica in layout.replicas):
        passes = separate_weights(nodes, passes, stages)
    staged = StagedStep(sharded=sharded, layout=layout, nodes=nodes, stages=stages, passes=passes)
    return recompute(staged, scopes) if layout.recompute else staged
