"""What is wrong with a model, or not exact, told before its first step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import keras

from evener import _tf_private
from evener.errors import EngineError, warn
from evener.plan import Plan

if TYPE_CHECKING:
    from evener.engine.staged.strategy import StagedStrategy


def check_model(model: keras.Model, strategy: StagedStrategy) -> None:
    """Refuse a model that cannot be trained exactly; warn where it can be, but not exactly.

    Raises:
        EngineError: If the model has variables without an owner, or a state that belongs to
            places in the batch.
    """
    _refuse_foreign_variables(model, strategy)
    _refuse_kept_states(model, strategy.plan)
    if strategy.plan.is_cut:
        _warn_of_statistics(model, strategy.plan)


def _refuse_foreign_variables(model: keras.Model, strategy: StagedStrategy) -> None:
    for variable in model.variables:
        if not strategy.ledger.holds(variable.value):
            raise EngineError(
                "ENG-008",
                f"The variable {variable.path!r} was made outside the strategy's scope.",
                why="Every variable needs an owner among the devices of the strategy.",
                fix="Make all layers of the model inside `with strategy.scope():`.",
            )


def _refuse_kept_states(model: keras.Model, plan: Plan) -> None:
    if len(plan.replicas) == 1 and plan.replicas[0].num_micro_batches == 1:
        return
    for layer in _tf_private.all_layers(model):
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            raise EngineError(
                "ENG-009",
                f"The layer {layer.name!r} keeps its state from batch to batch.",
                why="The state of every sample lives with that sample's place in the batch, "
                "which may go to another device or micro-batch when the shares change.",
                fix="Use stateful=False, or one device and one micro-batch.",
            )


def _warn_of_statistics(model: keras.Model, plan: Plan) -> None:
    """Name the layers that take statistics of a micro-batch for those of the batch."""
    several = len(plan.replicas) > 1
    affected = [
        layer.name
        for layer in _tf_private.all_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.trainable
        and (_most_micro_batches(plan) > 1 or (several and layer.synchronized))
    ]
    if affected:
        warn_of_statistics(affected, plan, functools.partial(warn, stacklevel=5))


def warn_of_statistics(names: Sequence[str], plan: Plan, warn: Callable[..., None]) -> None:
    """Warn that layers will not see the whole batch.

    Args:
        names: Of the layers.
        plan: It cuts the batch.
        warn: Called with the code and the parts of the warning.
    """
    cut = _most_micro_batches(plan)
    pieces = f"{cut} micro-batches" if cut > 1 else f"{len(plan.replicas)} replicas"
    warn(
        "ENG-045",
        f"{', '.join(map(repr, names))} will not see the whole batch.",
        why=f"The plan cuts a batch into {pieces}, which pass through the layers one by one, "
        "so BatchNormalization takes the statistics of each by itself. One device would take "
        "those of the batch: the weights will differ.",
        fix="One micro-batch per replica and no stages, or a layer without statistics of the "
        "batch, such as GroupNormalization or LayerNormalization.",
    )


def _most_micro_batches(plan: Plan) -> int:
    return max(replica.num_micro_batches for replica in plan.replicas)
