"""Models of ``tf_keras`` (Keras 2) belong to the strategy of the run, as those of Keras 3 do.

``tf_keras`` is a package of its own; it is ``tf.keras`` with ``TF_USE_LEGACY_KERAS=1``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from evener._tf_private.patches import Patch
from evener.run.loading import Loading
from evener.run.models import init_in_scope
from evener.run.notes import Notes
from evener.run.replace import instead_of
from evener.strategy import Strategy

_MODULE = "tf_keras"
_MODELS = Patch(
    "models of Keras 2",
    f"{_MODULE}:Model.__init__",
    why="A model belongs to the strategy in whose scope it is made, and scripts have no scope.",
    if_it_changes="Models of Keras 2 of unchanged scripts train on one device.",
)
_OPTIMIZERS = Patch(
    "optimizers of Keras 2",
    f"{_MODULE}:optimizers.Optimizer.__init__",
    why="An optimizer changes averages of weights by the strategy in whose scope it is made.",
    if_it_changes="Optimizers with use_ema=True end with an error about nested scopes.",
)
_SLOTS = Patch(
    "slots of older optimizers of Keras 2",
    f"{_MODULE}:optimizers.legacy.Optimizer.add_slot",
    why="Such an optimizer makes a slot only in the scope in which its variable was made.",
    if_it_changes="Eager steps with these optimizers end with an error that names the scope.",
)
_REDUCTIONS = Patch(
    "reductions of Keras 2",
    f"{_MODULE}:losses.Loss._get_reduction",
    why="Under a strategy a loss refuses the mean over the batch, since a replica would divide by "
    "the samples of its own. A strategy of evener has one replica, which has the whole batch.",
    if_it_changes="Loops whose loss is the mean over the batch end with an error of Keras 2.",
)
_WEIGHTS = Patch(
    "weights of Keras 2",
    f"{_MODULE}:layers.Layer.add_weight",
    why="A layer may be built before its model is made, and Keras 2 refuses to compile a model "
    "with weights from outside of the scope.",
    if_it_changes="Models of unchanged scripts end with an error of Keras 2 that names the scope.",
)


def attach_legacy_models(strategy: Strategy, notes: Notes) -> None:
    """Let new models of ``tf_keras`` belong to a strategy, once the script has imported it.

    Args:
        strategy: The strategy.
        notes: Reports the first model.
    """

    def attach() -> None:
        _MODELS.apply(lambda original: init_in_scope(original, strategy, notes))
        _OPTIMIZERS.apply(lambda original: _in_scope(original, strategy))
        _WEIGHTS.apply(lambda original: _in_scope(original, strategy))
        _SLOTS.apply(lambda original: _in_scope(original, strategy))
        _REDUCTIONS.apply(lambda original: _over_the_batch(original))

    # What a script makes by `tf.Variable` has no scope, and Keras 2 refuses to compile with it.
    strategy.extended.outside = tf.distribute.get_strategy()
    Loading((_MODULE,), attach).watch()


def _in_scope(original: Callable[..., Any], strategy: Strategy) -> Callable[..., Any]:
    @instead_of(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.distribute.has_strategy():
            return original(self, *args, **kwargs)
        with strategy.scope():
            return original(self, *args, **kwargs)

    return method


def _over_the_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    @instead_of(original)
    def reduction(loss: Any) -> Any:
        if isinstance(tf.distribute.get_strategy(), Strategy):
            loss._allow_sum_over_batch_size = True
        return original(loss)

    return reduction
