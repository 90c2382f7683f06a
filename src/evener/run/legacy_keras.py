"""A warning of models of ``tf_keras``, Keras 2, which train outside of the strategy of the run."""

from __future__ import annotations

import functools
import sys
from typing import Any

from evener.errors import warn
from evener.run.loading import Loading
from evener.run.user_line import user_line
from evener.strategy import Strategy

_MODULE = "tf_keras"


def warn_of_legacy_keras(strategy: Strategy) -> None:
    """Warn (RUN-023) when the script fits a model of ``tf_keras`` outside of the strategy.

    A model that was made in the scope of the strategy trains on all devices, and causes no warning.

    Args:
        strategy: The strategy of the run.
    """
    if strategy.is_partitioned:
        Loading((_MODULE,), lambda: _watch_fit(sys.modules[_MODULE], strategy)).watch()


def _watch_fit(module: Any, strategy: Strategy) -> None:
    original = module.Model.fit
    is_warned = False

    @functools.wraps(original)
    def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_warned
        if not is_warned and model.distribute_strategy is not strategy:
            is_warned = True
            _warn(strategy)
        return original(model, *args, **kwargs)

    module.Model.fit = fit


def _warn(strategy: Strategy) -> None:
    first, *idle = strategy.plan.device_names
    warn(
        "RUN-023",
        f"{user_line()}: a model of tf_keras trains on {first} alone; {', '.join(idle)} has "
        "nothing to do.",
        why="evener run attaches models of Keras 3, and tf_keras is Keras 2: a package of its own, "
        "which is tf.keras with TF_USE_LEGACY_KERAS=1.",
        fix="make and compile the model in `with evener.Strategy().scope():`, where models of "
        "tf_keras train on all devices too; or import keras.",
    )
