"""The door for Keras: ``fit``, ``evaluate`` and ``predict`` run the engine's steps.

Keras names `make_train_function` and its siblings as the place to put another step. They
are replaced once on `keras.Model`, and do what Keras does unless the model was made in an
evener scope; a subclass that overrides them keeps its own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener import _tf_private
from evener.engine import split
from evener.engine.program import Program
from evener.engine.step import Steps
from evener.engine.strategy import Strategy
from evener.errors import EngineError

_STEPS = ("train_step", "test_step", "predict_step")
_STEPS_OF = "_evener_steps"


def install() -> None:
    """Let models made in an evener scope train through evener. Safe to call again."""
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


def evener_strategy(model: keras.Model) -> Strategy | None:
    """Return the evener strategy in whose scope a model was made, or None.

    Raises:
        EngineError: If the model is used inside the scope of another strategy, or was made
            outside the scope it is used in.
    """
    made_in = _tf_private.model_strategy(model)
    now = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    if isinstance(now, Strategy) and made_in is not now:
        raise _made_elsewhere(model, made_in)
    return made_in if isinstance(made_in, Strategy) else None


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

    def __init__(self, strategy: Strategy) -> None:
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
            data_batch = _without_optionals(_tf_private.element_spec(iterator))
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


def steps_of(model: keras.Model, strategy: Strategy) -> Steps:
    """Return the steps of a built model, new ones after each ``compile``."""
    compiled = _tf_private.loss_tracker(model)
    steps, made_for = model.__dict__.get(_STEPS_OF, (None, None))
    if steps is None or made_for is not compiled:
        steps = _new_steps(model, strategy)
        # Past Keras's attribute tracking: the steps are no part of the model.
        model.__dict__[_STEPS_OF] = (steps, compiled)
    return steps


def _new_steps(model: keras.Model, strategy: Strategy) -> Steps:
    _refuse_own_steps(model)
    _refuse_foreign_variables(model, strategy)
    _refuse_kept_states(model, strategy)
    return Steps(Program(strategy, model, jit_compile=bool(model.jit_compile)))


def _refuse_own_steps(model: keras.Model) -> None:
    own = [name for name in _STEPS if getattr(type(model), name) is not getattr(keras.Model, name)]
    if own:
        raise EngineError(
            "ENG-002",
            f"The model {model.name!r} brings its own {' and '.join(own)}.",
            why="The engine splits Keras's own steps over the devices, not those of a person.",
            fix="Override compute_loss and compute_metrics instead, which see the whole batch; "
            "or train this model without a strategy.",
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


def _refuse_kept_states(model: keras.Model, strategy: Strategy) -> None:
    if len(strategy.replica_devices) == 1:
        return
    for layer in _tf_private.all_layers(model):
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            raise EngineError(
                "ENG-009",
                f"The layer {layer.name!r} keeps its state from batch to batch.",
                why="The state of every sample lives with that sample's place in the batch, "
                "which may go to another device when the shares change.",
                fix="Use stateful=False, or a strategy of one device.",
            )


def _make(original: Callable[..., Any], attribute: str, step: str) -> Callable[..., Any]:
    """Return a replacement for ``make_train_function`` or ``make_test_function``."""

    @functools.wraps(original)
    def make_function(self: keras.Model, force: bool = False) -> Any:
        strategy = evener_strategy(self)
        if strategy is None:
            return original(self, force=force)
        if getattr(self, attribute) is None or force:
            steps = steps_of(self, strategy)
            loop = _tf_private.step_loop(self, getattr(steps, step))
            setattr(self, attribute, Execution(steps, loop, trains=step == "train"))
        return getattr(self, attribute)

    return make_function


class Execution:
    """What Keras calls per execution: prepares before the first, evens the shares after each.

    Args:
        steps: The steps of the model.
        loop: Keras's loop over the batches of one execution, around one of the steps.
        trains: Whether that step trains.
    """

    def __init__(self, steps: Steps, loop: Callable[[Any], Any], *, trains: bool) -> None:
        self.steps = steps
        self._loop = loop
        self._trains = trains

    def __call__(self, iterator: Any) -> Any:
        """Run one execution; return its logs."""
        if self.steps.needs_spec(training=self._trains) or self._needs_samples():
            iterator = self._prepare(iterator)
        try:
            logs = self._loop(iterator)
        except tf.errors.InvalidArgumentError as error:
            # In a graph, the size of a batch is only known when the step runs.
            if split.no_samples().code in error.message:
                raise split.no_samples() from error
            raise
        self.steps.watch.tell()
        if self._trains:
            program = self.steps.program
            program.strategy.sharing.review(program.model.steps_per_execution)
        return logs

    def _prepare(self, iterator: Any) -> Any:
        """Prepare the steps; return an iterator that still has every batch."""
        if isinstance(iterator, tf.data.Iterator):
            self._trace(iterator.element_spec)
            if not self._needs_samples():
                return iterator
        first = next(iterator)
        self._trace(first)
        if self._needs_samples():
            self.steps.learn_added(_without_optionals(first), training=self._trains)
        return itertools.chain([first], iterator)

    def _trace(self, spec: Any) -> None:
        if self.steps.needs_spec(training=self._trains):
            self.steps.prepare(_without_optionals(spec), training=self._trains)

    def _needs_samples(self) -> bool:
        return self.steps.needs_samples(training=self._trains)


def _make_predict(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make_predict_function(self: keras.Model, force: bool = False) -> Any:
        strategy = evener_strategy(self)
        if strategy is None:
            return original(self, force=force)
        if self.predict_function is None or force:
            self.predict_function = _predict_function(self, strategy)
        return self.predict_function

    return make_predict_function


def _predict_function(model: keras.Model, strategy: Strategy) -> Callable[[list[Any]], Any]:
    """Return a function of the batches of one execution."""
    steps: Steps | None = None

    def predict(batches: list[Any]) -> Any:
        assert steps is not None
        return split.join([steps.predict(_without_optionals(batch)) for batch in batches])

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


def _build_to_predict(model: keras.Model, strategy: Strategy, batch: Any) -> None:
    if all(layer.built for layer in _tf_private.all_layers(model)):
        return
    x, _, _ = split.unpack(_without_optionals(batch))
    with strategy.scope():
        model(keras.tree.map_structure(lambda t: keras.KerasTensor(t.shape, t.dtype.name), x))


def _without_optionals(batch: Any) -> Any:
    """Return a batch, or its spec, with None for what the data leaves out."""
    kinds = (tf.experimental.Optional, tf.OptionalSpec)
    return keras.tree.map_structure(lambda leaf: None if isinstance(leaf, kinds) else leaf, batch)
