"""The door for Keras: ``fit``, ``evaluate`` and ``predict`` run the engine's steps.

Keras names `make_train_function` and its siblings as the place to put another step. They
are replaced once on `keras.Model`, and do what Keras does unless the model was made in an
evener scope; a subclass that overrides them keeps its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener import _tf_private
from evener.engine.staged import split
from evener.engine.staged.execution import Execution, without_optionals
from evener.engine.staged.loops import own_steps
from evener.engine.staged.loops.install import install as loops_install
from evener.engine.staged.model_checks import check_model
from evener.engine.staged.program import Program
from evener.engine.staged.stages.footprint import Footprint, footprints
from evener.engine.staged.step import Steps
from evener.engine.staged.strategy import StagedStrategy
from evener.engine.strategy import Strategy
from evener.errors import EngineError

_STEPS_OF = "_evener_steps"


def install() -> None:
    """Let models made in a `StagedStrategy` train in stages. Safe to call again."""
    loops_install()
    if getattr(keras.Model, "_evener_installed", False):
        return
    keras.Model._evener_installed = True
    keras.Model.distribute_strategy = _distribute_strategy(keras.Model.distribute_strategy)
    keras.Model.make_train_function = _make(
        keras.Model.make_train_function, "train_function", "train"
    )
    keras.Model.make_test_function = _make(keras.Model.make_test_function, "test_function", "test")
    keras.Model.make_predict_function = _make_predict(keras.Model.make_predict_function)
    keras.Model._maybe_symbolic_build = _build(keras.Model._maybe_symbolic_build)


def evener_strategy(model: keras.Model) -> StagedStrategy | None:
    """Return the evener strategy in whose scope a model was made, or None.

    Raises:
        EngineError: If the model is used inside the scope of another strategy, or was made
            outside the scope it is used in.
    """
    made_in = _tf_private.model_strategy(model)
    now = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    is_staged = isinstance(now, StagedStrategy) or isinstance(made_in, StagedStrategy)
    if isinstance(now, Strategy) and is_staged and made_in is not now:
        raise _made_elsewhere(model, made_in)
    return made_in if isinstance(made_in, StagedStrategy) else None


def _made_elsewhere(model: keras.Model, made_in: Any) -> EngineError:
    if made_in is None:
        return EngineError(
            "ENG-006",
            f"The model {model.name!r} was made outside the scope it is used in.",
            why="Its variables have no owner under this strategy.",
            fix="Make and compile the model inside `with strategy.scope():`.",
        )
    return EngineError(
        "ENG-007",
        f"The model {model.name!r} was made under another strategy.",
        why="Its variables are owned by the devices of that strategy and cannot move.",
        fix="Save the model, and load it with keras.saving.load_model in the new scope.",
    )


class TrainerFace:
    """What Keras's trainer finds as ``model.distribute_strategy``.

    The engine splits batches inside the step, so data comes through whole and a step runs
    as it is.

    Args:
        strategy: The strategy behind it.
    """

    def __init__(self, strategy: StagedStrategy) -> None:
        self._strategy = strategy

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Return the dataset as it is."""
        del options
        return dataset

    def run(self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None) -> Any:
        """Call a step."""
        return fn(*args, **(kwargs or {}))

    def scope(self) -> Any:
        """Enter the strategy's scope."""
        return self._strategy.scope()

    def __getattr__(self, name: str) -> Any:
        """Give everything else from the strategy."""
        return getattr(self._strategy, name)


def _distribute_strategy(original: property) -> property:
    def get(self: keras.Model) -> Any:
        strategy = evener_strategy(self)
        return original.__get__(self) if strategy is None else TrainerFace(strategy)

    return property(get)


def _build(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def build(self: keras.Model, iterator: Any = None, data_batch: Any = None) -> Any:
        strategy = evener_strategy(self)
        if strategy is None:
            return original(self, iterator=iterator, data_batch=data_batch)
        if iterator is not None:
            data_batch = without_optionals(_tf_private.element_spec(iterator))
        else:
            _check_eager_batch(data_batch)
        if self.optimizer is not None:
            _tf_private.adopt_optimizer(self.optimizer, strategy)
        with strategy.scope():
            _tf_private.build_from_spec(self, data_batch)
        return None

    return build


def _check_eager_batch(data_batch: Any) -> None:
    """Refuse a batch that cannot be split, before anything is built from it."""
    leaves = split.batch_leaves(data_batch)
    if not leaves:
        raise split.no_tensor()
    for leaf in leaves:
        shape = getattr(leaf, "shape", None)
        if shape is None or not _is_convertible(leaf):
            raise split.not_a_tensor(leaf)
        if len(shape) and shape[0] == 0:
            raise split.no_samples()


def _is_convertible(leaf: Any) -> bool:
    if not isinstance(leaf, np.ndarray) or leaf.dtype.kind != "O":
        return True
    try:
        tf.convert_to_tensor(leaf)
    except (TypeError, ValueError):
        return False
    return True


def steps_of(model: keras.Model, strategy: StagedStrategy) -> Steps:
    """Return the steps of a built model, new ones after each ``compile``."""
    compiled = _tf_private.loss_tracker(model)
    steps, made_for = model.__dict__.get(_STEPS_OF, (None, None))
    if steps is None or made_for is not compiled:
        steps = _new_steps(model, strategy)
        # Past Keras's attribute tracking: the steps are no part of the model.
        model.__dict__[_STEPS_OF] = (steps, compiled)
    return steps


def _renewed_steps(model: keras.Model, strategy: StagedStrategy) -> Steps:
    """Return steps for a plan that has changed; what was made for the old one is dropped."""
    model.__dict__.pop(_STEPS_OF, None)
    model.test_function = model.predict_function = None
    return steps_of(model, strategy)


def footprint(model: keras.Model, num_samples: int) -> dict[str, Footprint]:
    """Return what a training step of a model needs on every device.

    Args:
        model: Made and compiled in an evener scope, and trained for one step at least. Without
            stages and micro-batches only its variables are known.
        num_samples: Samples of the global batch.

    Raises:
        EngineError: If the model was not made in an evener scope.
    """
    strategy = _tf_private.model_strategy(model)
    if not isinstance(strategy, Strategy):
        raise EngineError(
            "ENG-011",
            f"The model {model.name!r} was not made in an evener scope.",
            why="What it needs depends on the plan of its strategy, and it has none.",
            fix="Make and compile it inside `with strategy.scope():`.",
        )
    if not isinstance(strategy, StagedStrategy):
        return {name: Footprint(variables=n) for name, n in strategy.ledger.owned_bytes().items()}
    return footprints(steps_of(model, strategy), num_samples)


def _new_steps(model: keras.Model, strategy: StagedStrategy) -> Steps:
    check_model(model, strategy)
    return Steps(Program(strategy, model, jit_compile=bool(model.jit_compile)))


def _make(original: Callable[..., Any], attribute: str, step: str) -> Callable[..., Any]:
    """Return a replacement for ``make_train_function`` or ``make_test_function``."""

    @functools.wraps(original)
    def make_function(self: keras.Model, force: bool = False) -> Any:
        strategy = evener_strategy(self)
        if strategy is None:
            return original(self, force=force)
        if getattr(self, attribute) is None or force:
            if own_steps.has_own(self, step):
                check_model(self, strategy)
                execution = own_steps.function_of(self, strategy, step)
            else:
                execution = Execution(
                    steps_of(self, strategy), step, renew=lambda: _renewed_steps(self, strategy)
                )
            setattr(self, attribute, execution)
        return getattr(self, attribute)

    return make_function


def _make_predict(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make_predict_function(self: keras.Model, force: bool = False) -> Any:
        strategy = evener_strategy(self)
        if strategy is None:
            return original(self, force=force)
        if self.predict_function is None or force:
            if own_steps.has_own(self, "predict"):
                check_model(self, strategy)
                self.predict_function = own_steps.function_of(self, strategy, "predict")
            else:
                self.predict_function = _predict_function(self, strategy)
        return self.predict_function

    return make_predict_function


def _predict_function(model: keras.Model, strategy: StagedStrategy) -> Callable[[list[Any]], Any]:
    """Return a function of the batches of one execution."""
    steps: Steps | None = None

    def predict(batches: list[Any]) -> Any:
        assert steps is not None
        return split.join([steps.predict(without_optionals(batch)) for batch in batches])

    run = predict
    if not model.run_eagerly:
        run = tf.function(predict, reduce_retracing=True, autograph=False)

    def build_and_run(batches: list[Any]) -> Any:
        nonlocal steps
        if steps is None:
            _build_to_predict(model, strategy, batches[0])
            # Of its own: a model can predict before its losses are built.
            steps = _new_steps(model, strategy)
        return run(batches)

    return build_and_run


def _build_to_predict(model: keras.Model, strategy: StagedStrategy, batch: Any) -> None:
    if all(layer.built for layer in _tf_private.all_layers(model)):
        return
    x, _, _ = split.unpack(without_optionals(batch))
    with strategy.scope():
        model(keras.tree.map_structure(lambda t: keras.KerasTensor(t.shape, t.dtype.name), x))
