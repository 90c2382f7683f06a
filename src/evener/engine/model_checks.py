"""What is wrong with a model, or not exact, told before its first step."""

from __future__ import annotations

import keras

from evener import _tf_private
from evener.engine.strategy import Strategy
from evener.errors import EngineError, warn
from evener.plan import Plan

_STEPS = ("train_step", "test_step", "predict_step")


def check_model(model: keras.Model, strategy: Strategy) -> None:
    """Refuse a model that cannot be trained exactly; warn where it can be, but not exactly.

    Raises:
        EngineError: If the model has steps of its own, variables without an owner, or a state
            that belongs to places in the batch.
    """
    if strategy.plan.is_cut:
        _refuse_own_steps(model)
    _refuse_foreign_variables(model, strategy)
    _refuse_kept_states(model, strategy.plan)
    if strategy.plan.is_cut:
        _warn_of_statistics(model, strategy.plan)


def _refuse_own_steps(model: keras.Model) -> None:
    own = [name for name in _STEPS if getattr(type(model), name) is not getattr(keras.Model, name)]
    if own:
        raise EngineError(
            "ENG-002",
            f"The model {model.name!r} brings its own {' and '.join(own)}.",
            why="The plan cuts models into stages or micro-batches, and the engine can only cut "
            "Keras's own steps.",
            fix="Override compute_loss and compute_metrics instead, which see the whole batch; "
            "or use a plan with one stage and one micro-batch per replica.",
        )


def _refuse_foreign_variables(model: keras.Model, strategy: Strategy) -> None:
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
    cut = max(replica.num_micro_batches for replica in plan.replicas)
    several = len(plan.replicas) > 1
    affected = [
        layer.name
        for layer in _tf_private.all_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.trainable
        and (cut > 1 or (several and layer.synchronized))
    ]
    if not affected:
        return
    pieces = f"{cut} micro-batches" if cut > 1 else f"{len(plan.replicas)} replicas"
    warn(
        "ENG-045",
        f"{', '.join(map(repr, affected))} will not see the whole batch.",
        why=f"The plan cuts a batch into {pieces}, which pass through the layers one by one, "
        "so BatchNormalization takes the statistics of each by itself. One device would take "
        "those of the batch: the weights will differ.",
        fix="One micro-batch per replica and no stages, or a layer without statistics of the "
        "batch, such as GroupNormalization or LayerNormalization.",
        stacklevel=4,
    )
