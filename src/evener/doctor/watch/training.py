"""Models in training: their variables, optimizers, layers with a training flag, and metrics."""

from __future__ import annotations

import dataclasses
import math
import sys
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener._tf_private import watched
from evener._tf_private.functions import left_by_name
from evener._tf_private.patches import Patch
from evener._tf_private.tensors import local_values
from evener.doctor.facts import (
    CodeLine,
    LayerFlag,
    LayerMade,
    MetricUse,
    ModelUse,
    NotFinite,
    OptimizerUse,
    VariableUse,
    use_of,
)
from evener.doctor.watch.loops import Loops, dtype_of, variable_of
from evener.doctor.watch.losses import Gauge, LossWatch, shape_of
from evener.doctor.watch.recorder import (
    Original,
    Recorder,
    added,
    is_asked_by_user,
    making_line,
    own_frame,
    own_line,
    targets,
)

_MODELS = Patch(
    "models of a watched program",
    "keras:Model.__init__",
    why="To know models that no `fit` trains.",
    if_it_changes="The doctor does not know the models of custom loops.",
)
_LAYERS = Patch(
    "layers of a watched program",
    "keras:layers.Layer.__init__",
    why="To see layers that are made anew in each call of another one.",
    if_it_changes="The doctor does not see layers that are made in calls.",
)
_OPTIMIZERS = Patch(
    "optimizers of a watched program",
    "keras:optimizers.Optimizer.__init__",
    why="To see optimizers that are made anew for each step.",
    if_it_changes="The doctor does not see optimizers that are made in a loop.",
)
_FLAGGED = Patch(
    "layers that behave otherwise in training",
    *targets(
        "keras:layers.{Dropout SpatialDropout1D SpatialDropout2D GaussianNoise GaussianDropout "
        "AlphaDropout BatchNormalization}.call"
    ),
    why="The training flag arrives there, wherever it was given.",
    if_it_changes="The doctor does not see a missing training flag.",
)
_METRICS = Patch(
    "metrics of a watched program",
    *targets("keras:metrics.{Mean Sum MeanMetricWrapper}.update_state"),
    *targets("keras:{Metric metrics.Mean metrics.Sum}.reset_state"),
    why="A metric that is never reset goes on over all epochs.",
    if_it_changes="The doctor does not see metrics that are never reset.",
)
_SEQUENTIAL = str(Path("keras", "src", "models", "sequential.py"))
_MOST_GAUGED = 256
# Weights are compared from step to step up to this size.
_MOST_COMPARED_BYTES = 256 * 2**20
_COMPARED_UPDATES = 3
_MOST_WAYS = 200
_COMPARED_STEPS = 64  # of loops that update now and then, as those that accumulate gradients


@dataclass(slots=True, eq=False)
class _Variable:
    variable: Any
    num_gradients: int = 0
    num_none: int = 0
    num_applied: int = 0
    num_swapped: int = 0
    num_negated: int = 0
    optimizers: set[int] = field(default_factory=set)
    where: CodeLine | None = None
    gradient_norms: list[float] = field(default_factory=list)
    update_norms: list[float] = field(default_factory=list)
    before: Any = None
    norm: float | None = None
    first_norm: float | None = None
    began_constant: bool = False
    was_set_back: bool = False
    in_model: bool = False
    is_listed: bool = True  # Whether a model that trains lists it as trainable, if one has it


class Training:
    def __init__(self, recorder: Recorder, loops: Loops, losses: LossWatch) -> None:
        self._recorder = recorder
        self._loops = loops
        self._of_losses = losses
        self._apply_gauges: dict[int, tuple[Gauge, list[int]]] = {}
        self._variables: dict[int, _Variable] = {}
        # With the last object that a line made. Facts are written by a thread: what it finds here
        # must be whole.
        self._optimizers: dict[CodeLine | None, tuple[Any, OptimizerUse]] = {}
        self._models: dict[CodeLine | None, tuple[weakref.ref[Any], ModelUse]] = {}
        self._known_models: weakref.WeakSet[Any] = weakref.WeakSet()
        self._in_calls: dict[CodeLine | None, list[Any]] = {}
        self._flags: dict[tuple[Any, ...], LayerFlag] = {}
        self._metrics: dict[int, tuple[keras.Metric, MetricUse]] = {}
        self._gradients: dict[int, tuple[Any, Any]] = {}
        self._anchor: tuple[_Variable, Any] | None = None
        self._ways: list[float] = []
        self._num_compared = 0
        self._num_updates: dict[int, int] = {}

    def watch(self) -> None:
        _MODELS.apply(self._recorder.after_init(self._made))
        _LAYERS.apply(self._recorder.after_init(self._made_layer))
        _OPTIMIZERS.apply(self._recorder.after_init(self._made_optimizer))
        _FLAGGED.apply(self._recorder.before(self._flag))
        _METRICS.apply_by_name(left_by_name(self._use_metric))

    def on_gradient(self, tape: Any, _: Any, pairs: list[tuple[Any, Any]]) -> None:
        where = own_line() or self._loops.fit_line
        for variable in tape.watched_variables():
            self._entry(variable)
        # The tensors are kept, so that no other one gets their ids.
        self._gradients = {id(gradient): (variable, gradient) for variable, gradient in pairs}
        for variable, gradient in pairs:
            if isinstance(variable, tf.Variable):
                entry = self._entry(variable)
                entry.num_gradients += 1
                entry.num_none += gradient is None
                entry.where = where

    def on_apply(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        gradients = kwargs.get("grads", args[0] if args else None)
        variables = kwargs.get("trainable_variables", args[1] if len(args) > 1 else None)
        variables = optimizer._trainable_variables if variables is None else list(variables)
        self._count(optimizer, getattr(optimizer, "_evener_line", None), num_applied=1)
        pairs: list[tuple[_Variable, Any]] = []
        for variable, gradient in zip(variables, gradients or (), strict=False):
            entry = self._entry(variable_of(variable))
            if gradient is not None:
                entry.num_applied += 1
                entry.optimizers.add(id(optimizer))
                entry.where = entry.where or own_line() or self._loops.fit_line
                pairs.append((entry, getattr(gradient, "values", gradient)))
                made = gradient
                if watched.graph_of(gradient) is not None and gradient.op.type == "Neg":
                    made = gradient.op.inputs[0]
                source, _ = self._gradients.get(id(made), (entry.variable, None))
                # Gradients may be given to a model that the tape has not watched, as a global one.
                is_known = any(each is entry.variable for each, _ in self._gradients.values())
                entry.num_swapped += is_known and source is not entry.variable
                entry.num_negated += made is not gradient and id(made) in self._gradients
        pairs = pairs[:_MOST_GAUGED]
        self._note_first([entry for entry, _ in pairs if entry.first_norm is None])
        # In a graph, a reader of a gradient keeps TensorFlow from fusing the operation that makes
        # it, and rounding changes: there, only changes of variables are measured.
        if not pairs or not tf.executing_eagerly():
            return
        keys = [id(entry.variable) for entry, _ in pairs]
        gauge, known = self._apply_gauges.setdefault(id(optimizer), (Gauge(len(keys)), keys))
        if known == keys:
            parts = [gradient for _, gradient in pairs]
            gauge.write(lambda: [tf.norm(tf.cast(part, tf.float32)) for part in parts])

    def _note_first(self, entries: list[_Variable]) -> None:
        """Take note of matrices before their first update: in a trace, nothing is updated yet."""
        shapes = {entry: shape_of(entry.variable) for entry in entries}
        kernels = [e for e, shape in shapes.items() if len(shape) > 1 and min(shape[-2:]) > 1]
        with tf.init_scope():
            for entry in kernels if kernels and self._compared() else ():
                value = _value(entry.variable).numpy()
                if not value.size:
                    continue  # A variable that the trace makes has no value.
                entry.first_norm = float(np.linalg.norm(value.astype(np.float64)))
                entry.began_constant = bool((value == value.flat[0]).all())
                is_smaller = self._anchor is None or value.size < self._anchor[1].size
                if is_smaller and not self._ways:
                    self._anchor = (entry, value)

    def _count(self, optimizer: Any, where: CodeLine | None, **counts: int) -> None:
        first = OptimizerUse(kind=type(optimizer).__name__, where=where, num_made=0)
        _, use = self._optimizers.get(where, (None, first))
        if "num_made" in counts:
            use = dataclasses.replace(use, first_rate=_rate_of(optimizer))
        self._optimizers[where] = optimizer, added(use, **counts)

    def _entry(self, variable: Any) -> _Variable:
        return self._variables.setdefault(id(variable), _Variable(variable))

    def _made(self, model: Any) -> None:
        if model in self._known_models or self._loops.open_calls or _is_inner(model):
            return
        self._known_models.add(model)
        where = making_line()
        first = ModelUse(kind=type(model).__name__, where=where, num_made=0)
        _, use = self._models.get(where, (None, first))
        use = added(use, num_made=1, num_made_in_steps=int(self._recorder.num_steps > 0))
        self._models[where] = (
            weakref.ref(model),
            dataclasses.replace(
                use,
                made_in_scope=tf.distribute.has_strategy(),
                num_cleared=self._loops.num_calls("clear_session"),
            ),
        )

    def _made_layer(self, layer: Any) -> None:
        frame = own_frame() if watched.is_in_layer_call() else None
        if frame is not None and frame.f_code.co_name not in ("build", "__init__"):
            found = self._in_calls.setdefault(own_line(frame), [0, None])
            found[0], found[1] = found[0] + 1, layer

    def _made_optimizer(self, optimizer: Any) -> None:
        if self._loops.open_calls and self._loops.open_calls[-1] != "compile":
            return  # Saving makes copies.
        where = making_line()
        optimizer._evener_line = where
        num_in_steps = int(self._recorder.num_steps > 0)
        self._count(optimizer, where, num_made=1, num_made_in_steps=num_in_steps)

    def _flag(self, layer, inputs, training: Any = None, *_: Any, **__: Any) -> None:
        if isinstance(inputs, keras.KerasTensor):
            return
        flag = bool(training) if isinstance(training, bool | int) else None
        seen = LayerFlag(
            layer=layer.name,
            kind=type(layer).__name__,
            training=flag,
            is_recorded=self._of_losses.is_recorded,
            trainable=bool(layer.trainable),
            where=None if self._loops.in_fit else own_line(),
        )
        key = (seen.layer, seen.kind, flag, seen.is_recorded, seen.trainable)
        self._flags.setdefault(key, seen)

    def _use_metric(self, name: str, original: Original, metric, *args, **kwargs) -> Any:
        # Keras updates those of a compiled model itself.
        if name == "reset_state" or is_asked_by_user(sys._getframe(2)):
            self._recorder.safely(self._metric, metric, name, args)
        return original(metric, *args, **kwargs)

    def _metric(self, metric: Any, name: str, args: Any) -> None:
        _, use = self._metrics.get(id(metric), (None, MetricUse(name=metric.name, where=None)))
        if name == "reset_state":
            use = added(use, num_resets=1)
        else:
            use = dataclasses.replace(added(use, num_updates=1), where=use.where or own_line())
            if len(args) > 1 and isinstance(metric, keras.metrics.MeanMetricWrapper):
                use = dataclasses.replace(
                    use,
                    kind=use.kind or _name_of(keras.metrics.serialize(metric)),
                    label_shape=shape_of(args[0]),
                    output_shape=shape_of(args[1]),
                    takes_logits=getattr(args[1], "_evener_logits", None),
                )
        self._metrics[id(metric)] = metric, use

    def on_fit(self, _where: CodeLine | None, args: Any, _kwargs: Any) -> None:
        self._train(args[0])

    def _train(self, model: Any) -> None:
        for where, (last, use) in self._models.items():
            if last() is model and not _is_trained(model):
                self._models[where] = last, added(use, num_trained=1)
        object.__setattr__(model, "_evener_trained", True)

    def on_step(self, _: bool) -> None:
        if self._anchor is not None and len(self._ways) < _MOST_WAYS:
            entry, began = self._anchor
            self._ways.append(float(np.linalg.norm(_value(entry.variable).numpy() - began)))
            entry.was_set_back |= _is_back(self._ways)
        if self._num_compared >= _COMPARED_STEPS:
            return
        self._num_compared += 1
        if self._num_compared == 1:
            self._find_models()
        variables = self._compared()
        if not variables:
            self._num_compared = _COMPARED_STEPS
            return
        # A step that only adds gradients up, or trains another model, updates nothing here.
        counted = {
            id(optimizer): int(optimizer.iterations.numpy())
            for optimizer in list(self._loops.optimizers)
        }
        before, self._num_updates = self._num_updates, counted
        moved = {key for key, num in counted.items() if num != before.get(key, 0)}
        waiting = [entry for entry in variables if len(entry.update_norms) < _COMPARED_UPDATES]
        for entry in waiting:
            if self._optimizers and not (entry.optimizers or moved) & moved:
                continue
            value = tf.identity(_value(entry.variable))
            if entry.before is not None:
                change = tf.norm(tf.cast(value, tf.float64) - tf.cast(entry.before, tf.float64))
                entry.update_norms.append(float(change.numpy()))
            entry.before = value if len(entry.update_norms) < _COMPARED_UPDATES else None
        if not waiting:
            self._num_compared = _COMPARED_STEPS

    def _find_models(self) -> None:
        """Take note of the models whose variables train, and of all their variables."""
        owned, listed = set[int](), set[int]()
        for model in list(self._known_models):
            own = [variable_of(variable) for variable in model.variables]
            if _is_trained(model) or any(id(variable) in self._variables for variable in own):
                self._train(model)
                listed |= {id(variable_of(each)) for each in model.trainable_variables}
                for variable in own:
                    if _is_float(variable):
                        self._entry(variable).in_model = True
                        owned.add(id(variable))
        # A layer that was frozen before it was built has variables that say they are trainable.
        # A variable of a model that is gone was listed while that was there.
        for entry in self._variables.values():
            if id(entry.variable) in owned:
                entry.is_listed = id(entry.variable) in listed

    def examine(self) -> None:
        self._find_models()
        for entry in self._compared():
            entry.norm = float(tf.norm(tf.cast(_value(entry.variable), tf.float64)).numpy())

    def _compared(self) -> list[_Variable]:
        """Return the variables of numbers; none if all together are too large to be compared."""
        found = [entry for entry in self._variables.values() if _is_float(entry.variable)]
        sizes = (
            math.prod(shape_of(each.variable)) * tf.as_dtype(dtype_of(each.variable)).size
            for each in found
        )
        return found if sum(sizes) <= _MOST_COMPARED_BYTES else []

    def facts(self) -> dict[str, Any]:
        for gauge, keys in self._apply_gauges.values():
            for key, column in zip(keys, gauge.rows().T.tolist(), strict=True):
                self._variables[key].gradient_norms = column
        main = self._loops.main
        num_epochs = 0 if main is None else main.epochs
        reset = {key for key, (_, use) in self._metrics.items() if use.num_resets}
        return {
            "variables": tuple(_variable_use(entry) for entry in self._variables.values()),
            "optimizers": tuple(_optimizer_use(*each) for each in self._optimizers.values()),
            "models": tuple(
                _model_use(model, use, self._metrics.keys() - reset)
                for last, use in list(self._models.values())
                if (model := last()) is not None
            ),
            "layers_in_calls": tuple(
                LayerMade(
                    kind=type(made).__name__, where=where, num_made=n, num_weights=len(made.weights)
                )
                for where, (n, made) in self._in_calls.items()
            ),
            "layer_flags": tuple(self._flags.values()),
            "metrics": tuple(
                dataclasses.replace(use, num_epochs=num_epochs)
                for _, use in self._metrics.values()
                if use.num_updates
            ),
            "not_finite": self._first_not_finite(),
        }

    def _first_not_finite(self) -> NotFinite | None:
        series: list[tuple[str, str, CodeLine | None, Any]] = list(self._of_losses.series())
        for entry in self._variables.values():
            named = (_name(entry.variable), entry.where)
            series += [("gradient", *named, entry.gradient_norms)]
            series += [("variable", *named, entry.update_norms)]
        found = [
            NotFinite(what=what, name=name, step=index, where=where)
            for what, name, where, rows in series
            for index, row in enumerate(rows)
            if not np.isfinite(row).all()
        ]
        # Of one step, what comes first in it.
        order = ("labels", "outputs", "loss", "gradient", "variable")
        return min(found, key=lambda each: (each.step, order.index(each.what)), default=None)


def _is_back(ways: list[float]) -> bool:
    """Return whether the last step led from far away to where the first step led."""
    if len(ways) < 4 or not ways[0]:
        return False
    return ways[-1] <= 1.5 * ways[0] and ways[-2] > max(3 * ways[0], 2 * ways[-1])


def _variable_use(entry: _Variable) -> VariableUse:
    variable = entry.variable
    is_finite = entry.norm is not None and np.isfinite(entry.norm)
    return use_of(
        VariableUse,
        entry,
        name=_name(variable),
        shape=shape_of(variable),
        dtype=dtype_of(variable),
        trainable=entry.is_listed
        and bool(getattr(variable, "_keras_trainable", variable.trainable)),
        num_optimizers=len(entry.optimizers),
        norm=entry.norm if is_finite else None,
        has_nan=entry.norm is not None and not is_finite,
    )


def _optimizer_use(optimizer: Any, use: OptimizerUse) -> OptimizerUse:
    inner = getattr(optimizer, "inner_optimizer", None)
    rate = _rate_of(optimizer)
    is_schedule = isinstance((inner or optimizer).get_config().get("learning_rate"), dict)
    clips = ("clipnorm", "global_clipnorm", "clipvalue")
    return dataclasses.replace(
        use,
        num_made=max(1, use.num_made),
        learning_rate=rate,
        rate_changes=is_schedule or (use.first_rate is not None and use.first_rate != rate),
        has_loss_scale=inner is not None,
        clips=any(getattr(inner or optimizer, name, None) is not None for name in clips),
    )


def _rate_of(optimizer: Any) -> float | None:
    rate = getattr(getattr(optimizer, "inner_optimizer", None) or optimizer, "learning_rate", None)
    return None if rate is None else float(keras.ops.convert_to_numpy(rate))


def _model_use(model: Any, use: ModelUse, never_reset: set[int]) -> ModelUse:
    layers = model._flatten_layers(include_self=False)
    leaves = [layer for layer in layers if not isinstance(layer, keras.Model)]
    activations = [
        getattr(layer.activation, "__name__", type(layer.activation).__name__)
        for layer in leaves
        if getattr(layer, "activation", None) is not None
    ]
    listed = set(map(id, model.metrics))
    hidden = [
        name
        for name, value in vars(model).items()
        if isinstance(value, keras.Metric) and id(value) in never_reset - listed
    ]
    compiled = (model.get_compile_config() or {}) if getattr(model, "compiled", False) else {}
    given = compiled.get("metrics") or ()
    return dataclasses.replace(
        use,
        kind=type(model).__name__,
        num_parameters=sum(int(np.prod(each.shape)) for each in model.variables),
        trains=use.num_trained > 0,
        policy=str(getattr(model.dtype_policy, "name", "")),
        run_eagerly=bool(getattr(model, "run_eagerly", False)),
        activations=tuple(activations[-3:]),
        hidden_metrics=tuple(hidden),
        loss=_name_of(compiled.get("loss")),
        metrics=tuple(map(_name_of, given)) if isinstance(given, list | tuple) else (),
        layers=tuple(type(layer).__name__ for layer in leaves),
    )


def _name_of(written: Any) -> str:
    """Return the name of a loss or metric as `compile` keeps it; of one of the program, empty."""
    if isinstance(written, dict) and written.get("class_name") == "function":
        name = str(written.get("config"))
        return name if hasattr(keras.losses, name) or hasattr(keras.metrics, name) else ""
    if not isinstance(written, dict):
        return written if isinstance(written, str) else ""
    config = written.get("config") or {}
    if config.get("threshold") not in (None, 0.5):
        return ""  # It is chosen.
    return str(written.get("class_name", "")) + " from_logits" * bool(config.get("from_logits"))


def _is_trained(model: Any) -> bool:
    return getattr(model, "_evener_trained", False)


def _is_inner(model: Any) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        is_sequential = frame.f_code.co_filename.endswith(_SEQUENTIAL)
        if is_sequential and frame.f_locals.get("self") is not model:
            return True
        frame = frame.f_back
    return False


def _value(variable: Any) -> Any:
    return tf.convert_to_tensor(local_values(variable)[0])


def _is_float(variable: Any) -> bool:
    return dtype_of(variable).startswith(("float", "bfloat"))


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name)).partition(":")[0]
