"""Models in training: losses with the values they are given, gradients, variables, optimizers.

In a traced function a value is a symbol; a `Gauge` writes a few sums of it to the host in each
call, as an operation beside the program's own. Where XLA compiles, nothing is added.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener._tf_private import watched
from evener._tf_private.functions import definition_frames, is_compiled, leave_to_autograph
from evener._tf_private.patches import Patch
from evener._tf_private.tensors import local_values, plain_variable
from evener.base.user_code import is_own
from evener.doctor.facts import (
    GradientUse,
    LayerFlag,
    Line,
    LossUse,
    MetricUse,
    ModelUse,
    NotFinite,
    OptimizerUse,
    Values,
    VariableUse,
)
from evener.doctor.watch.loops import Loops
from evener.doctor.watch.recorder import SCOPE, Recorder, is_asked_by_user, making_line, own_line

_MODELS = Patch(
    "models of a watched program",
    "keras:Model.__init__",
    why="To know models that no `fit` trains.",
    if_it_changes="The doctor does not know the models of custom loops.",
)
_OPTIMIZERS = Patch(
    "optimizers of a watched program",
    "keras:optimizers.Optimizer.__init__",
    why="To see optimizers that are made anew for each step.",
    if_it_changes="The doctor does not see optimizers that are made in a loop.",
)
_LOSSES = Patch(
    "losses of a watched program",
    "keras:losses.Loss.__call__",
    why="To compare outputs and labels with what a loss expects.",
    if_it_changes="The doctor does not see losses.",
)
_RAW_LOSSES = Patch(
    "losses of TensorFlow in a watched program",
    "tensorflow:nn.softmax_cross_entropy_with_logits",
    "tensorflow:nn.sparse_softmax_cross_entropy_with_logits",
    "tensorflow:nn.sigmoid_cross_entropy_with_logits",
    why="They take logits, and nothing refuses probabilities.",
    if_it_changes="The doctor does not see losses of custom loops.",
)
_TAPES = Patch(
    "tapes of a watched program",
    "tensorflow:GradientTape.__enter__",
    "tensorflow:GradientTape.__exit__",
    why="Whether a layer is called in a training step is known by the tape around it.",
    if_it_changes="The doctor does not see a missing training flag.",
)
_FLAGGED = Patch(
    "layers that behave otherwise in training",
    *(
        f"keras:layers.{name}.call"
        for name in (
            "Dropout",
            "SpatialDropout1D",
            "SpatialDropout2D",
            "GaussianNoise",
            "GaussianDropout",
            "AlphaDropout",
            "BatchNormalization",
        )
    ),
    why="The training flag arrives there, wherever it was given.",
    if_it_changes="The doctor does not see a missing training flag.",
)
_METRICS = Patch(
    "metrics of a watched program",
    "keras:metrics.Mean.update_state",
    "keras:metrics.Sum.update_state",
    "keras:Metric.reset_state",
    "keras:metrics.Mean.reset_state",
    "keras:metrics.Sum.reset_state",
    why="A metric that is never reset goes on over all epochs.",
    if_it_changes="The doctor does not see metrics that are never reset.",
)
_DIFFERENCES = ("Sub", "SquaredDifference")
_ACTIVATIONS = {
    "Softmax": "softmax",
    "Sigmoid": "sigmoid",
    "Relu": "relu",
    "Tanh": "tanh",
    "BiasAdd": "linear",
    "MatMul": "linear",
}
_SEQUENTIAL = str(Path("keras", "src", "models", "sequential.py"))
_ROWS = 64
_GAUGED_CALLS = 16
_MOST_GAUGED = 256
# Weights are compared from step to step up to this size.
_MOST_COMPARED_BYTES = 256 * 2**20
_COMPARED_STEPS = 4


class Gauge:
    """Rows of numbers that operations of a graph, or of eager code, write for each call.

    Args:
        width: Numbers in a row.
        num_calls: Number of calls to write a row in, up to 64.
    """

    def __init__(self, width: int, *, num_calls: int = _GAUGED_CALLS) -> None:
        self._num_calls = num_calls
        self.eager: list[Any] = []
        with tf.init_scope(), tf.device("CPU:0"):
            self._rows = plain_variable(
                np.full((num_calls + 1, width), np.nan, np.float32), tf.float32
            )
            self._count = plain_variable(0, tf.int64)

    def write(self, row: Callable[[], Sequence[Any]]) -> None:
        """Write a row: now, or in each call of the function that is traced, the first times."""
        with watched.unrecorded(), tf.name_scope(SCOPE):
            if tf.executing_eagerly():
                if len(self.eager) < self._num_calls:
                    self.eager.append(tf.stack([tf.cast(part, tf.float32) for part in row()]))
                return

            # A condition in the program's graph would change how TensorFlow fuses its operations.
            values = tf.stack([tf.cast(part, tf.float32) for part in row()])
            with tf.device("CPU:0"):
                index = tf.reshape(tf.math.minimum(self._count, self._num_calls), (1, 1))
                self._rows.scatter_nd_update(index, values[tf.newaxis])
                self._count.assign_add(1)

    def rows(self) -> np.ndarray:
        """Return the rows so far, in order."""
        if self.eager:
            return np.stack([row.numpy() for row in self.eager])
        num = min(int(self._count.numpy()), self._num_calls)
        return self._rows.numpy()[:num]


@dataclass(slots=True, eq=False)
class _Loss:
    name: str
    where: Line | None
    from_logits: bool | None
    activation: str = ""
    label_shape: tuple[int, ...] = ()
    label_dtype: str = ""
    output_shape: tuple[int, ...] = ()
    output_dtype: str = ""
    gauge: Gauge | None = None
    is_broadcast: bool = False
    has_mask: bool = False
    num_replicas: int = 1
    is_reduced: bool = True
    trains: bool = False
    num_calls: int = 0


@dataclass(slots=True, eq=False)
class _Variable:
    variable: Any
    num_gradients: int = 0
    num_none: int = 0
    num_applied: int = 0
    optimizers: set[int] = field(default_factory=set)
    where: Line | None = None
    norms: list[float] = field(default_factory=list)
    updates: list[float] = field(default_factory=list)
    before: Any = None
    norm: float | None = None
    in_model: bool = False
    is_listed: bool = True  # Whether a model that trains lists it as trainable, if one has it


@dataclass(slots=True, eq=False)
class _Optimizer:
    kind: str
    where: Line | None
    last: Any = None
    num_made: int = 0
    num_made_in_steps: int = 0
    num_applied: int = 0
    num_variables: int = 0
    made_in_scope: bool = False
    num_replicas: int = 1


@dataclass(slots=True, eq=False)
class _Models:
    where: Line | None
    last: Any = None
    num_made: int = 0
    num_made_in_steps: int = 0
    num_cleared: int = 0
    made_in_scope: bool = False
    trained: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    num_trained: int = 0


class Training:
    """Looks at what trains.

    Args:
        recorder: Knows whether training has begun.
        loops: Tells of steps, gradients and updates.
    """

    def __init__(self, recorder: Recorder, loops: Loops) -> None:
        self._recorder = recorder
        self._loops = loops
        self._here = threading.local()
        self._losses: dict[tuple[Any, ...], _Loss] = {}
        self._gradients: dict[Line | None, dict[str, Any]] = {}
        self._target_gauges: dict[Line | None, Gauge] = {}
        self._apply_gauges: dict[int, tuple[Gauge, list[int]]] = {}
        self._variables: dict[int, _Variable] = {}
        self._optimizers: dict[Line | None, _Optimizer] = {}
        self._models: dict[Line | None, _Models] = {}
        self._known_models: weakref.WeakSet[Any] = weakref.WeakSet()
        self._trained: weakref.WeakSet[Any] = weakref.WeakSet()
        self._flags: dict[tuple[Any, ...], list[Any]] = {}
        self._metrics: dict[int, list[Any]] = {}
        self._num_compared = 0
        self._num_cleared = 0
        self.model: Any = None

    def watch(self) -> None:
        """Begin to look."""
        self._loops.gradient_listeners.append(self._gradient)
        self._loops.apply_listeners.append(self._apply)
        self._loops.fit_listeners.append(self._fit)
        self._loops.step_listeners.append(self._stepped)
        self._loops.custom_losses = self.target_values
        _MODELS.apply(self._around_model)
        _OPTIMIZERS.apply(self._around_optimizer)
        _LOSSES.apply(self._around_loss)
        _RAW_LOSSES.apply_by_name(self._around_raw_loss)
        watched.CROSS_ENTROPIES.apply_by_name(self._around_cross_entropy)
        _TAPES.apply_by_name(self._around_tape)
        _FLAGGED.apply(self._around_flagged)
        _METRICS.apply_by_name(self._around_metric)

    @property
    def is_compiled(self) -> bool:
        """Whether XLA compiles what is traced here, so that nothing may be added."""
        return any(map(is_compiled, self._loops.open_functions))

    def _may_gauge(self, tensor: Any) -> bool:
        if tf.executing_eagerly():
            return True
        graph = watched.graph_of(tensor)
        return not self.is_compiled and not watched.is_loop_body(graph)

    # Losses.

    def _around_loss(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(loss: Any, y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
            self._here.loss = (loss, own_line())
            try:
                result = original(loss, y_true, y_pred, *args, **kwargs)
            finally:
                self._here.loss = None
            self._here.last_loss = result
            name = getattr(getattr(loss, "fn", None), "__name__", None) or type(loss).__name__
            if "crossentropy" not in name or getattr(self._here, "in_entropy", 0):
                # Cross entropies of Keras are seen where they are computed.
                self._recorder.safely(
                    self._note_loss, name, None, y_true, y_pred, own_line(), result
                )
            return result

        leave_to_autograph(call)
        return call

    def _around_cross_entropy(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(
            target: Any, output: Any, from_logits: bool = False, *args: Any, **kwargs: Any
        ) -> Any:
            inside = getattr(self._here, "in_entropy", 0)
            self._here.in_entropy = inside + 1
            try:
                if not inside and not isinstance(target, keras.KerasTensor):
                    self._recorder.safely(
                        self._note_loss, name, bool(from_logits), target, output, own_line(), None
                    )
                return original(target, output, from_logits, *args, **kwargs)
            finally:
                self._here.in_entropy = inside

        return call

    def _around_raw_loss(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not getattr(self._here, "in_entropy", 0):
                labels = kwargs.get("labels", args[0] if args else None)
                logits = kwargs.get("logits", args[1] if len(args) > 1 else None)
                self._here.last_loss = result
                self._recorder.safely(
                    self._note_loss, name, True, labels, logits, own_line(), result
                )
            return result

        leave_to_autograph(call)
        return call

    def _note_loss(
        self,
        name: str,
        from_logits: bool | None,
        labels: Any,
        outputs: Any,
        where: Line | None,
        result: Any,
    ) -> None:
        if not (tf.is_tensor(outputs) or hasattr(outputs, "dtype")):
            return
        where = where or self._loops.fit_line
        key = (name, where, from_logits)
        found = self._losses.setdefault(key, _Loss(name, where, from_logits))
        found.num_calls += 1
        found.trains = found.trains or self._is_recorded
        found.num_replicas = max(found.num_replicas, _replicas_here())
        found.label_shape, found.label_dtype = _shape(labels), _dtype(labels)
        found.output_shape, found.output_dtype = _shape(outputs), _dtype(outputs)
        found.has_mask = found.has_mask or getattr(outputs, "_keras_mask", None) is not None
        if result is not None:
            found.is_reduced = len(_shape(result)) == 0
        found.activation = found.activation or _activation_of(outputs)
        if not self._may_gauge(outputs):
            return
        if found.gauge is None:
            found.gauge = Gauge(8)

        def row() -> list[Any]:
            values = tf.cast(outputs, tf.float32)
            truth = tf.cast(labels, tf.float32)
            sums = tf.reduce_sum(values, -1) if len(_shape(values)) > 1 else values
            return [
                *(reduce(values) for reduce in (tf.reduce_min, tf.reduce_max)),
                *(reduce(sums) for reduce in (tf.reduce_min, tf.reduce_max)),
                *(reduce(truth) for reduce in (tf.reduce_min, tf.reduce_max)),
                tf.reduce_mean(tf.cast(tf.equal(truth, tf.round(truth)), tf.float32)),
                tf.reduce_sum(tf.cast(tf.equal(truth, 1.0), tf.float32))
                / tf.cast(tf.maximum(tf.size(truth), 1), tf.float32),
            ]

        found.gauge.write(row)

    # Tapes, gradients, updates.

    @property
    def _is_recorded(self) -> bool:
        return getattr(self._here, "tapes", 0) > 0

    def _around_tape(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        change = 1 if name == "__enter__" else -1

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._here.tapes = max(0, getattr(self._here, "tapes", 0) + change)
            return original(*args, **kwargs)

        leave_to_autograph(call)
        return call

    def _gradient(self, tape: Any, target: Any, sources: Any, result: Any) -> None:
        where = own_line() or self._loops.fit_line
        flat = tf.nest.flatten(sources)
        given = tf.nest.flatten(result)
        variables = [_variable_of(source) for source in flat]
        recorded = tape.watched_variables()
        recorded_ids = {id(variable) for variable in recorded}
        for variable in recorded:
            self._entry(variable)
        pairs = list(zip(variables, given, strict=True))
        missing = [variable for variable, gradient in pairs if gradient is None]
        found = self._gradients.setdefault(where, {"num_calls": 0})
        found["num_calls"] += 1
        found["num_sources"] = len(flat)
        found["num_none"] = len(missing)
        found["num_not_watched"] = sum(
            isinstance(each, tf.Variable) and id(each) not in recorded_ids for each in missing
        )
        found["is_persistent"] = bool(getattr(tape, "_persistent", False))
        found["num_replicas"] = _replicas_here()
        for variable, gradient in pairs:
            if isinstance(variable, tf.Variable):
                entry = self._entry(variable)
                entry.num_gradients += 1
                entry.num_none += gradient is None
                entry.where = where
        targets = [each for each in tf.nest.flatten(target) if tf.is_tensor(each)]
        if len(targets) != 1:
            return
        (only,) = targets
        found["target_shape"], found["loss_dtype"] = _shape(only), _dtype(only)
        if not self._may_gauge(only):
            return
        loss = getattr(self._here, "last_loss", None)
        graph_of = watched.graph_of
        if loss is not None and graph_of(loss) is not graph_of(only):
            loss = None
        self._target_gauge(where).write(
            lambda: [
                tf.reduce_mean(tf.cast(only, tf.float32)),
                np.nan if loss is None else tf.reduce_mean(tf.cast(loss, tf.float32)),
            ]
        )
        self._here.last_loss = None
        graph = watched.graph_of(only)
        if graph is not None:
            self._note_broadcasts(graph)

    def _target_gauge(self, where: Line | None) -> Gauge:
        if where not in self._target_gauges:
            self._target_gauges[where] = Gauge(2, num_calls=_ROWS)
        return self._target_gauges[where]

    def _note_broadcasts(self, graph: Any) -> None:
        """Find differences of a column and a row, which make a matrix of a batch."""
        for operation in graph.get_operations():
            if operation.type in _DIFFERENCES and SCOPE not in operation.name:
                frames = definition_frames(operation)
                lines = [frame for frame in frames if is_own(frame[0])]
                where = Line(file=lines[-1][0], line=lines[-1][1]) if lines else None
                self.difference(operation.type, *operation.inputs, where=where)

    def difference(self, name: str, left: Any, right: Any, where: Line | None) -> None:
        """Take note of a difference of values of different ranks: (n,) and (n, 1)."""
        shapes = (_shape(left), _shape(right))
        short, long = sorted(shapes, key=len)
        if (len(short), len(long)) != (1, 2) or long[1] != 1 or short[0] in (0, 1):
            return
        if long[0] != short[0]:
            return
        found = self._losses.setdefault((name, where, None), _Loss(name, where, None))
        found.is_broadcast, found.trains, found.num_calls = True, True, found.num_calls + 1
        found.label_shape, found.output_shape = shapes
        found.label_dtype, found.output_dtype = _dtype(left), _dtype(right)

    def _apply(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        gradients = kwargs.get("grads", args[0] if args else None)
        variables = kwargs.get("trainable_variables", args[1] if len(args) > 1 else None)
        variables = optimizer._trainable_variables if variables is None else list(variables)
        where = self._optimizer_line(optimizer)
        found = self._optimizers.setdefault(where, _Optimizer(type(optimizer).__name__, where))
        found.last, found.num_applied = optimizer, found.num_applied + 1
        found.num_variables = len(variables)
        found.num_replicas = max(found.num_replicas, _replicas_here())
        pairs: list[tuple[_Variable, Any]] = []
        for variable, gradient in zip(variables, gradients or (), strict=False):
            entry = self._entry(_variable_of(variable))
            if gradient is not None:
                entry.num_applied += 1
                entry.optimizers.add(id(optimizer))
                entry.where = entry.where or own_line() or self._loops.fit_line
                pairs.append((entry, getattr(gradient, "values", gradient)))
        pairs = pairs[:_MOST_GAUGED]
        # In a graph, a reader of a gradient keeps TensorFlow from fusing the operation that makes
        # it, and rounding changes: there, only changes of variables are measured.
        if not pairs or not tf.executing_eagerly():
            return
        keys = [id(entry.variable) for entry, _ in pairs]
        gauge, known = self._apply_gauges.setdefault(id(optimizer), (Gauge(len(keys)), keys))
        if known == keys:
            parts = [gradient for _, gradient in pairs]
            gauge.write(lambda: [tf.norm(tf.cast(part, tf.float32)) for part in parts])

    def _entry(self, variable: Any) -> _Variable:
        return self._variables.setdefault(id(variable), _Variable(variable))

    # Models, optimizers, layers, metrics.

    def _around_model(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def init(model: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(model, *args, **kwargs)
            self._recorder.safely(self._made, model)
            return result

        return init

    def _made(self, model: Any) -> None:
        if model in self._known_models or self._loops.open_calls or _is_inner(model):
            return
        self._known_models.add(model)
        where = making_line()
        found = self._models.setdefault(where, _Models(where))
        found.last = weakref.ref(model)
        found.num_made += 1
        found.num_made_in_steps += self._recorder.is_training
        found.made_in_scope = tf.distribute.has_strategy()
        found.num_cleared = self._loops.num_calls("clear_session")

    def _around_optimizer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(optimizer, *args, **kwargs)
            self._recorder.safely(self._made_optimizer, optimizer)
            return result

        return init

    def _made_optimizer(self, optimizer: Any) -> None:
        if self._loops.open_calls and self._loops.open_calls[-1] != "compile":
            return  # Saving makes copies.
        where = making_line()
        optimizer._evener_line = where
        found = self._optimizers.setdefault(where, _Optimizer(type(optimizer).__name__, where))
        found.num_made += 1
        found.num_made_in_steps += self._recorder.is_training
        found.made_in_scope = tf.distribute.has_strategy()
        found.last = optimizer

    def _optimizer_line(self, optimizer: Any) -> Line | None:
        return getattr(optimizer, "_evener_line", None)

    def _around_flagged(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(layer: Any, inputs: Any, training: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(inputs, keras.KerasTensor):
                self._recorder.safely(self._flag, layer, training)
            if training is None:
                return original(layer, inputs, *args, **kwargs)
            return original(layer, inputs, training, *args, **kwargs)

        return call

    def _flag(self, layer: Any, training: Any) -> None:
        flag = bool(training) if isinstance(training, bool | int) else None
        key = (layer.name, type(layer).__name__, flag, self._is_recorded, bool(layer.trainable))
        where = None if self._loops.in_fit else own_line()
        self._flags.setdefault(key, [0, where])[0] += 1

    def _around_metric(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(metric: Any, *args: Any, **kwargs: Any) -> Any:
            # Keras updates those of a compiled model itself.
            if name == "reset_state" or is_asked_by_user(sys._getframe(1)):
                self._recorder.safely(self._metric, metric, name)
            return original(metric, *args, **kwargs)

        leave_to_autograph(call)
        return call

    def _metric(self, metric: Any, name: str) -> None:
        found = self._metrics.setdefault(id(metric), [metric, None, 0, 0])
        if name == "update_state":
            found[1], found[2] = found[1] or own_line(), found[2] + 1
        else:
            found[3] += 1

    # Steps.

    def _fit(self, where: Line | None, args: Any, kwargs: Any) -> None:
        self._train(args[0])

    def _train(self, model: Any) -> None:
        self.model = model
        self._trained.add(model)
        for found in self._models.values():
            if found.last is not None and found.last() is model and model not in found.trained:
                found.trained.add(model)
                found.num_trained += 1

    def _stepped(self, is_timed: bool) -> None:
        if self._num_compared >= _COMPARED_STEPS:
            return
        self._num_compared += 1
        if self._num_compared == 1:
            self._find_models()
        variables = list(self._variables.values())
        if sum(_num_bytes(entry.variable) for entry in variables) > _MOST_COMPARED_BYTES:
            self._num_compared = _COMPARED_STEPS
            return
        for entry in variables:
            if not _dtype(entry.variable).startswith(("float", "bfloat")):
                continue
            value = tf.identity(_value(entry.variable))
            if entry.before is not None:
                change = tf.norm(tf.cast(value, tf.float64) - tf.cast(entry.before, tf.float64))
                entry.updates.append(float(change.numpy()))
            entry.before = value if self._num_compared < _COMPARED_STEPS else None

    def _find_models(self) -> None:
        """Take note of the models whose variables train, and of all their variables."""
        listed = set[int]()
        for model in list(self._known_models):
            own = [_variable_of(variable) for variable in model.variables]
            if any(id(variable) in self._variables for variable in own) or model in self._trained:
                self._train(model)
                listed |= {id(_variable_of(each)) for each in model.trainable_variables}
                for variable in own:
                    if _dtype(variable).startswith(("float", "bfloat")):
                        self._entry(variable).in_model = True
        # A layer that was frozen before it was built has variables that say they are trainable.
        for entry in self._variables.values():
            entry.is_listed = not entry.in_model or id(entry.variable) in listed

    def examine(self) -> None:
        """Look once more at the end."""
        self._find_models()
        variables = [
            entry
            for entry in self._variables.values()
            if _dtype(entry.variable).startswith(("float", "bfloat"))
        ]
        if sum(_num_bytes(entry.variable) for entry in variables) <= _MOST_COMPARED_BYTES:
            for entry in variables:
                entry.norm = float(tf.norm(tf.cast(_value(entry.variable), tf.float64)).numpy())

    def facts(self) -> dict[str, Any]:
        """Return what trains."""
        self._gather_norms()
        return {
            "losses": tuple(_loss_use(loss) for loss in self._losses.values()),
            "gradients": tuple(
                GradientUse(where=where, loss_ratio=self._loss_ratio(where), **found)
                for where, found in self._gradients.items()
            ),
            "variables": tuple(_variable_use(entry) for entry in self._variables.values()),
            "optimizers": tuple(map(_optimizer_use, self._optimizers.values())),
            "models": tuple(
                use for found in self._models.values() if (use := _model_use(found)) is not None
            ),
            "layer_flags": tuple(
                LayerFlag(
                    layer=layer,
                    kind=kind,
                    training=flag,
                    is_recorded=is_recorded,
                    num_calls=num,
                    where=where,
                    trainable=trainable,
                )
                for (layer, kind, flag, is_recorded, trainable), (num, where) in self._flags.items()
            ),
            "metrics": tuple(
                MetricUse(
                    name=metric.name,
                    kind=type(metric).__name__,
                    where=where,
                    num_updates=updates,
                    num_resets=resets,
                    num_epochs=0 if self._loops.main is None else self._loops.main.epochs,
                )
                for metric, where, updates, resets in self._metrics.values()
                if updates
            ),
            "not_finite": self._first_not_finite(),
        }

    def held(self) -> set[int]:
        """Return the ids of tensors that are kept here."""
        gauges = [loss.gauge for loss in self._losses.values() if loss.gauge is not None]
        gauges += self._target_gauges.values()
        gauges += [gauge for gauge, _ in self._apply_gauges.values()]
        kept = [row for gauge in gauges for row in gauge.eager]
        kept += [entry.before for entry in self._variables.values()]
        return set(map(id, [*kept, getattr(self._here, "last_loss", None)]))

    def target_values(self) -> list[float]:
        """Return the loss of each step of the custom loop, as the tape was given it."""
        gauge = next(iter(self._target_gauges.values()), None)
        return [] if gauge is None else [float(row[0]) for row in gauge.rows()]

    def _loss_ratio(self, where: Line | None) -> float | None:
        gauge = self._target_gauges.get(where)
        rows = np.zeros((0, 2)) if gauge is None else gauge.rows()
        ratios = [row[0] / row[1] for row in rows if np.isfinite(row).all() and row[1]]
        return float(np.median(ratios)) if ratios else None

    def _gather_norms(self) -> None:
        for gauge, keys in self._apply_gauges.values():
            rows = gauge.rows()
            for index, key in enumerate(keys):
                if key in self._variables:
                    self._variables[key].norms = [float(row[index]) for row in rows]

    def _first_not_finite(self) -> NotFinite | None:
        found: list[tuple[int, int, NotFinite]] = []
        for loss in self._losses.values():
            rows = loss.gauge.rows() if loss.gauge is not None else []
            for index, row in enumerate(rows):
                for order, what, part in ((0, "labels", row[4:6]), (1, "outputs", row[:2])):
                    if not np.isfinite(part).all():
                        bad = NotFinite(what=what, name=loss.name, step=index, where=loss.where)
                        found.append((index, order, bad))
        for where, gauge in self._target_gauges.items():
            for index, row in enumerate(gauge.rows()):
                if not np.isfinite(row[0]):
                    found.append((index, 2, NotFinite(what="loss", step=index, where=where)))
        for entry in self._variables.values():
            for order, what, norms in (
                (3, "gradient", entry.norms),
                (4, "variable", entry.updates),
            ):
                for index, norm in enumerate(norms):
                    if not np.isfinite(norm):
                        name = _name(entry.variable)
                        bad = NotFinite(what=what, name=name, step=index, where=entry.where)
                        found.append((index, order, bad))
        return min(found, key=lambda entry: entry[:2])[2] if found else None


def _loss_use(loss: _Loss) -> LossUse:
    rows = np.zeros((0, 8)) if loss.gauge is None else loss.gauge.rows()
    low = [None] * 8 if not len(rows) else [_finite(each) for each in np.nanmin(rows, 0)]
    high = [None] * 8 if not len(rows) else [_finite(each) for each in np.nanmax(rows, 0)]
    classes = loss.label_shape[-1] if loss.label_shape else 0
    is_one_hot = (
        bool(len(rows))
        and low[6] == 1.0
        and low[4] == 0.0
        and high[5] == 1.0
        and classes > 1
        and all(abs(float(share) * classes - 1) < 1e-3 for share in rows[:, 7])
    )
    return LossUse(
        name=loss.name,
        where=loss.where,
        from_logits=loss.from_logits,
        activation=loss.activation,
        outputs=Values(
            shape=loss.output_shape,
            dtype=loss.output_dtype,
            min=low[0],
            max=high[1],
            has_nan=bool(len(rows)) and not np.isfinite(rows[:, :2]).all(),
        ),
        labels=Values(
            shape=loss.label_shape,
            dtype=loss.label_dtype,
            min=low[4],
            max=high[5],
            is_integral=low[6] == 1.0,
            is_one_hot=is_one_hot,
            has_nan=bool(len(rows)) and not np.isfinite(rows[:, 4:6]).all(),
        ),
        row_sum_min=low[2],
        row_sum_max=high[3],
        is_broadcast=loss.is_broadcast,
        has_mask=loss.has_mask,
        num_replicas=loss.num_replicas,
        is_reduced=loss.is_reduced,
        trains=loss.trains,
        num_calls=loss.num_calls,
    )


def _variable_use(entry: _Variable) -> VariableUse:
    variable = entry.variable
    return VariableUse(
        name=_name(variable),
        shape=_shape(variable),
        dtype=_dtype(variable),
        trainable=entry.is_listed
        and bool(getattr(variable, "_keras_trainable", variable.trainable)),
        num_gradients=entry.num_gradients,
        num_none=entry.num_none,
        num_applied=entry.num_applied,
        num_optimizers=len(entry.optimizers),
        gradient_norms=tuple(entry.norms),
        update_norms=tuple(entry.updates),
        norm=None if entry.norm is None or not np.isfinite(entry.norm) else entry.norm,
        has_nan=entry.norm is not None and not np.isfinite(entry.norm),
        in_model=entry.in_model,
        where=entry.where,
    )


def _optimizer_use(found: _Optimizer) -> OptimizerUse:
    optimizer = found.last
    inner = getattr(optimizer, "inner_optimizer", None)
    rate = getattr(inner or optimizer, "learning_rate", None)
    clips = ("clipnorm", "global_clipnorm", "clipvalue")
    return OptimizerUse(
        kind=found.kind,
        where=found.where,
        num_made=max(1, found.num_made),
        num_made_in_steps=found.num_made_in_steps,
        num_applied=found.num_applied,
        iterations=int(optimizer.iterations.numpy()) if optimizer is not None else None,
        learning_rate=None if rate is None else float(keras.ops.convert_to_numpy(rate)),
        num_variables=found.num_variables,
        has_loss_scale=inner is not None,
        clips=any(getattr(inner or optimizer, name, None) is not None for name in clips),
        made_in_scope=found.made_in_scope,
        num_replicas=found.num_replicas,
    )


def _model_use(found: _Models) -> ModelUse | None:
    model = found.last() if found.last is not None else None
    if model is None:
        return None
    layers = list(model._flatten_layers(include_self=False))
    leaves = [layer for layer in layers if not isinstance(layer, keras.Model)]
    activations = [
        getattr(layer.activation, "__name__", type(layer.activation).__name__)
        for layer in leaves
        if getattr(layer, "activation", None) is not None
    ]
    units = [getattr(layer, "units", None) for layer in leaves]
    return ModelUse(
        kind=type(model).__name__,
        name=model.name,
        where=found.where,
        num_made=found.num_made,
        num_made_in_steps=found.num_made_in_steps,
        num_cleared=found.num_cleared,
        num_trained=found.num_trained,
        num_parameters=sum(int(np.prod(each.shape)) for each in model.variables),
        num_trainable=sum(int(np.prod(each.shape)) for each in model.trainable_variables),
        trains=found.num_trained > 0,
        made_in_scope=found.made_in_scope,
        policy=str(getattr(model.dtype_policy, "name", "")),
        run_eagerly=bool(getattr(model, "run_eagerly", False)),
        is_compiled=getattr(model, "_jit_compile", None) is True,
        activations=tuple(activations[-3:]),
        last_units=units[-1] if units else None,
        layers=tuple(type(layer).__name__ for layer in leaves),
    )


def _is_inner(model: Any) -> bool:
    """Return whether a model is made by a `Sequential`, for itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        is_sequential = frame.f_code.co_filename.endswith(_SEQUENTIAL)
        if is_sequential and frame.f_locals.get("self") is not model:
            return True
        frame = frame.f_back
    return False


def _variable_of(source: Any) -> Any:
    """Return TensorFlow's variable of one of Keras."""
    # Under a strategy `value` is that of a replica.
    return source._value if isinstance(source, keras.Variable) else source


def _value(variable: Any) -> Any:
    first = local_values(variable)[0]
    return tf.convert_to_tensor(first)


def _num_bytes(variable: Any) -> int:
    return int(np.prod(_shape(variable))) * tf.as_dtype(_dtype(variable)).size


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name)).partition(":")[0]


def _shape(value: Any) -> tuple[int, ...]:
    shape = getattr(value, "shape", ())
    if getattr(shape, "rank", 0) is None:
        return ()
    return tuple(-1 if size is None else int(size) for size in shape)


def _dtype(value: Any) -> str:
    dtype = getattr(value, "dtype", "")
    return str(getattr(dtype, "name", dtype))


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _replicas_here() -> int:
    strategy = tf.distribute.get_strategy()
    return strategy.num_replicas_in_sync if tf.distribute.in_cross_replica_context() is False else 1


def _activation_of(outputs: Any) -> str:
    """Return the activation that made a tensor of a graph; empty if it is not known."""
    operation = getattr(outputs, "op", None) if not tf.executing_eagerly() else None
    while operation is not None and operation.type in ("Cast", "Identity", "Reshape", "Squeeze"):
        operation = operation.inputs[0].op
    return "" if operation is None else _ACTIVATIONS.get(operation.type, "")
