"""Losses with the values they are given, and what the target of a gradient is made of.

In a traced function a value is a symbol; a `Gauge` writes a few sums of it to the host in each
call, as an operation beside the program's own. Where XLA compiles, nothing is added.

    model --activation--> outputs --+
                                    +--> loss --sign, scale--> target of the gradient
                          labels ---+
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener._tf_private import watched
from evener._tf_private.functions import is_compiled, left_by_name, left_to_autograph
from evener._tf_private.patches import Patch
from evener._tf_private.tensors import plain_variable
from evener.doctor.facts import CodeLine, GradientUse, InputUse, LossUse, ValueRange
from evener.doctor.watch.loops import Loops, defined_at
from evener.doctor.watch.recorder import (
    SCOPE,
    Original,
    Recorder,
    inside,
    own_line,
    states_of_numpy,
    targets,
)
from evener.doctor.watch.times import DIFFERENCES

# Names of Keras for the losses of TensorFlow: one rule judges both.
_NAMES_OF_KERAS = {
    "softmax_cross_entropy_with_logits": "categorical_crossentropy",
    "sparse_softmax_cross_entropy_with_logits": "sparse_categorical_crossentropy",
    "sigmoid_cross_entropy_with_logits": "binary_crossentropy",
}
_LOSSES = Patch(
    "losses of a watched program",
    "keras:losses.Loss.__call__",
    why="To compare outputs and labels with what a loss expects.",
    if_it_changes="The doctor does not see losses.",
)
_RAW_LOSSES = Patch(
    "losses of TensorFlow in a watched program",
    *(f"tensorflow:nn.{name}" for name in _NAMES_OF_KERAS),
    why="They take logits, and nothing refuses probabilities.",
    if_it_changes="The doctor does not see losses of custom loops.",
)
_TAPES = Patch(
    "tapes of a watched program",
    *targets("tensorflow:GradientTape.{__enter__ __exit__}"),
    why="Whether a layer is called in a training step is known by the tape around it.",
    if_it_changes="The doctor does not see a missing training flag.",
)
_FIRST_LAYERS = Patch(
    "layers that a watched program gives its inputs",
    *targets("keras:layers.{Dense Conv1D Conv2D Conv3D LSTM GRU SimpleRNN}.call"),
    why="What a model is given is known where its first weights meet it, however it was scaled.",
    if_it_changes="The doctor does not see inputs of custom loops that are not scaled.",
)
_FUNCTIONS = {
    "Softmax": "softmax",
    "Sigmoid": "sigmoid",
    "Relu": "relu",
    "Tanh": "tanh",
    "BiasAdd": "linear",
    "MatMul": "linear",
}
_PASSING = ("Cast", "Identity", "Reshape", "Squeeze", "ExpandDims", "StridedSlice")
# What reads weights, or hides what is inside.
_WEIGHTS = (
    *("ReadVariableOp", "ResourceGather", "PartitionedCall", "StatefulPartitionedCall"),
    *("If", "While", "StatelessWhile"),
)
_REDUCTIONS = ("Mean", "Sum")
# Of one of these alone, a loss is never to be made greater.
_ERRORS = (
    "Square SquaredDifference Abs SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits"
).split()
_ROWS = 64
_GAUGED_CALLS = 64
_COMPARED_CALLS = 8
_MOST_OPERATIONS = 200


class Gauge:
    """Rows of numbers that operations of a graph, or of eager code, write for each call."""

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
        is_eager = tf.executing_eagerly()
        if is_eager and len(self.eager) >= self._num_calls:
            return
        with watched.unrecorded(), tf.name_scope(SCOPE):
            values = tf.stack([tf.cast(part, tf.float32) for part in row()])
            if is_eager:
                self.eager.append(values)
                return
            # A condition in the program's graph would change how TensorFlow fuses its operations.
            with tf.device("CPU:0"):
                index = tf.reshape(tf.math.minimum(self._count, self._num_calls), (1, 1))
                self._rows.scatter_nd_update(index, values[tf.newaxis])
                self._count.assign_add(1)

    def rows(self) -> np.ndarray:
        if self.eager:
            return np.stack([row.numpy() for row in self.eager])
        num = min(int(self._count.numpy()), self._num_calls)
        return self._rows.numpy()[:num]


class LossWatch:
    def __init__(self, recorder: Recorder, loops: Loops) -> None:
        self._recorder = recorder
        self._loops = loops
        self._here = threading.local()
        # By name, line and `from_logits`; by line. Numbers are taken from the gauges at the end.
        self._losses: dict[tuple[Any, ...], tuple[LossUse, Gauge | None]] = {}
        self._gradients: dict[CodeLine | None, GradientUse] = {}
        self._targets: dict[CodeLine | None, Gauge] = {}
        self._inputs: dict[tuple[int, bool], tuple[InputUse, Gauge]] = {}

    def watch(self) -> None:
        _LOSSES.apply(left_to_autograph(self._loss))
        _RAW_LOSSES.apply_by_name(left_by_name(self._raw_loss))
        watched.CROSS_ENTROPIES.apply_by_name(left_by_name(self._cross_entropy))
        watched.ACTIVATIONS.apply_by_name(left_by_name(self._activation))
        _TAPES.apply_by_name(left_by_name(self._tape))
        _FIRST_LAYERS.apply(self._recorder.before(self._note_input))

    @property
    def is_recorded(self) -> bool:
        """Whether a tape is open: what is called is part of a training step."""
        return getattr(self._here, "tapes", 0) > 0

    def _tape(self, name: str, original: Original, *args: Any, **kwargs: Any) -> Any:
        change = 1 if name == "__enter__" else -1
        self._here.tapes = max(0, getattr(self._here, "tapes", 0) + change)
        self._here.is_first = change > 0
        if change > 0:
            self._here.drawn = states_of_numpy(None)
            self._recorder.tell("tape")
        return original(*args, **kwargs)

    def _may_gauge(self, tensor: Any) -> bool:
        if tf.executing_eagerly():
            return True
        graph = watched.graph_of(tensor)
        is_inside = graph is not None and graph is not tf.compat.v1.get_default_graph()
        is_compiled_here = any(map(is_compiled, self._loops.open_functions))
        return not is_compiled_here and not is_inside and not watched.is_loop_body(graph)

    def _note_input(self, layer: Any, inputs: Any, *_: Any, **__: Any) -> None:
        if not tf.is_tensor(inputs) or not self._may_gauge(inputs):
            return
        trains, key = self.is_recorded, (id(layer), self.is_recorded)
        if trains:
            is_first = getattr(self._here, "is_first", False)
            self._here.is_first = False
            if not (is_first if tf.executing_eagerly() else _is_data(inputs)):
                return
        # Outside of steps the first layer is the one that is first in them.
        elif (id(layer), True) not in self._inputs:
            return
        if key not in self._inputs:
            use = InputUse(
                kind=type(layer).__name__,
                where=own_line() or self._loops.fit_line,
                values=ValueRange(shape=shape_of(inputs)),
                trains=trains,
                layer=layer.name,
            )
            self._inputs[key] = use, Gauge(5, num_calls=_COMPARED_CALLS)
        values = tf.cast(inputs, tf.float32)
        self._inputs[key][1].write(
            lambda: [
                *_extremes(values),
                tf.reduce_mean(values),
                _share(tf.equal(values, tf.round(values))),
                tf.reduce_mean(tf.square(values)),
            ]
        )

    def _activation(self, name: str, original, features, *args, **kwargs) -> Any:
        with inside(self._here, "in_activation") as is_inner:
            result = original(features, *args, **kwargs)
        if not is_inner and tf.is_tensor(result):
            before = getattr(features, "_evener_activations", ())
            self._recorder.safely(setattr, result, "_evener_activations", (*before, name))
        return result

    def _loss(self, original: Original, loss, y_true, y_pred, *args, **kwargs) -> Any:
        weights = kwargs.get("sample_weight", args[0] if args else None)
        mask = getattr(y_pred, "_keras_mask", None)
        self._here.is_weighted = weights is not None or mask is not None
        with inside(self._here, "in_loss"):
            result = original(loss, y_true, y_pred, *args, **kwargs)
        self._here.is_weighted = False
        self._here.last_loss = result
        name = getattr(getattr(loss, "fn", None), "__name__", None) or type(loss).__name__
        if "crossentropy" not in name or getattr(self._here, "in_entropy", False):
            # Cross entropies of Keras are seen where they are computed.
            self._recorder.safely(self._note_loss, name, None, y_true, y_pred, result)
        return result

    def _cross_entropy(
        self, name: str, original: Original, target, output, from_logits=False, *args, **kwargs
    ) -> Any:
        with inside(self._here, "in_entropy") as is_inner:
            result = original(target, output, from_logits, *args, **kwargs)
            if not is_inner and not isinstance(target, keras.KerasTensor):
                self._here.errors = [result]
                self._recorder.safely(self._note_loss, name, bool(from_logits), target, output)
            return result

    def _raw_loss(self, name: str, original: Original, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not getattr(self._here, "in_entropy", False):
            labels = kwargs.get("labels", args[0] if args else None)
            logits = kwargs.get("logits", args[1] if len(args) > 1 else None)
            self._here.last_loss, self._here.errors = result, [result]
            name = _NAMES_OF_KERAS[name]
            self._recorder.safely(self._note_loss, name, True, labels, logits, result)
        return result

    def _note_loss(
        self,
        name: str,
        from_logits: bool | None,
        labels: Any,
        outputs: Any,
        result: Any = None,
        where: CodeLine | None = None,
    ) -> None:
        if not (tf.is_tensor(outputs) or hasattr(outputs, "dtype")):
            return
        if tf.is_tensor(outputs):
            outputs._evener_logits = bool(from_logits)  # pyright: ignore[reportAttributeAccessIssue]
        where = where or own_line() or self._loops.fit_line
        first = LossUse(name=name, where=where, from_logits=from_logits, trains=False)
        use, gauge = self._losses.get((name, where, from_logits), (first, None))
        activations = (use.activation_before, use.activation)
        if not use.activation:
            activations = ("", "", *_activations_of(outputs))[-2:]
        # Losses of Keras use a mask themselves; functions do not.
        is_function = not getattr(self._here, "in_loss", False) and "cross" in name
        has_mask = is_function and getattr(outputs, "_keras_mask", None) is not None
        use = dataclasses.replace(
            use,
            trains=use.trains or self.is_recorded,
            num_replicas=max(use.num_replicas, replicas_here()),
            labels=ValueRange(shape=shape_of(labels)),
            outputs=ValueRange(shape=shape_of(outputs)),
            has_mask=use.has_mask or has_mask,
            is_weighted=use.is_weighted or getattr(self._here, "is_weighted", False),
            is_reduced=use.is_reduced if result is None else not shape_of(result),
            activation_before=activations[0],
            activation=activations[1],
        )
        may_gauge = self._may_gauge(outputs)
        gauge = gauge or (Gauge(11) if may_gauge else None)
        self._losses[name, where, from_logits] = use, gauge
        if gauge is None or not may_gauge:
            return

        def row() -> list[Any]:
            values = tf.cast(outputs, tf.float32)
            truth = tf.cast(labels, tf.float32)
            is_sequence = len(shape_of(truth)) == 2 and len(shape_of(values)) == 3
            sums = tf.reduce_sum(values, -1) if len(shape_of(values)) > 1 else values
            is_one_hot = "categorical" in name and "sparse" not in name and len(shape_of(truth))
            classes = tf.cast(tf.argmax(truth, -1), tf.float32) if is_one_hot else truth
            return [
                *(end for each in (values, sums, truth) for end in _extremes(each)),
                _share(tf.equal(truth, tf.round(truth))),
                tf.reduce_sum(tf.cast(tf.equal(truth, 1.0), tf.float32))
                / tf.cast(tf.maximum(tf.size(truth), 1), tf.float32),
                _share(truth[:, -1] == 0) - _share(truth[:, 0] == 0) if is_sequence else 0.0,
                *_extremes(classes),
            ]

        gauge.write(row)

    def on_gradient(self, tape: Any, target: Any, pairs: list[tuple[Any, Any]]) -> None:
        where = own_line() or self._loops.fit_line
        recorded = {id(variable) for variable in tape.watched_variables()}
        missing = [variable for variable, gradient in pairs if gradient is None]
        unwatched = [each for each in missing if id(each) not in recorded]
        use = self._gradients[where] = dataclasses.replace(
            self._gradients.get(where, GradientUse(where=where, num_sources=0)),
            num_sources=len(pairs),
            num_none=len(missing),
            num_not_watched=sum(isinstance(each, tf.Variable) for each in unwatched),
            num_replicas=replicas_here(),
        )
        tensors = [each for each in tf.nest.flatten(target) if tf.is_tensor(each)]
        if len(tensors) != 1 or not self._may_gauge(tensors[0]):
            return
        (only,) = tensors
        loss = getattr(self._here, "last_loss", None)
        graph = watched.graph_of(only)
        if loss is not None and watched.graph_of(loss) is not graph:
            loss = None
        errors = getattr(self._here, "errors", ())
        errors = [each for each in errors if watched.graph_of(each) is graph][:2]
        errors = errors if any(isinstance(each, tf.Variable) for each, _ in pairs) else []
        numbers = [only, loss, *errors, *[None] * (2 - len(errors))]
        if where not in self._targets:
            self._targets[where] = Gauge(4, num_calls=_ROWS)
        self._loops.target = self._loops.target or self._targets[where]
        self._targets[where].write(
            lambda: [
                np.nan if each is None else tf.reduce_mean(tf.cast(each, tf.float32))
                for each in numbers
            ]
        )
        self._here.last_loss, self._here.errors = None, ()
        if graph is None:
            return
        chain = _steps_back(only)
        drawn = getattr(self._here, "drawn", None)
        is_below = sum(factor < 0 for _, factor in chain) % 2 == 1
        last = chain[-1][0]
        is_even = last.type == "Pow" and bool(tf.get_static_value(last.inputs[1]) == 2)
        self._gradients[where] = dataclasses.replace(
            use,
            draws_constants=any(map(draws_constants, graph.get_operations())),
            draws_numpy=drawn not in (None, states_of_numpy(None)),
            is_negated=is_below and (is_even or last.type in _ERRORS),
            loss_ratio=_scale_of(chain) if loss is None else None,
        )
        # Differences that it is made of are losses that the program writes itself.
        inner = (*_FUNCTIONS, *_WEIGHTS, "Conv2D", "Placeholder")
        for operation in itertools.islice(_operations_behind(only, inner), _MOST_OPERATIONS):
            if operation.type in DIFFERENCES and SCOPE not in operation.name:
                self.on_difference(operation.type, *operation.inputs, where=defined_at(operation))

    def on_difference(self, name: str, left, right, where: CodeLine | None = None) -> None:
        where = where or own_line()
        are_tensors = all(map(tf.is_tensor, (left, right)))
        if where is None or not are_tensors or (not self.is_recorded and tf.executing_eagerly()):
            return
        if tf.executing_eagerly() and left.dtype.is_floating and left.dtype == right.dtype:
            with watched.unrecorded():
                self._here.errors = [tf.square(left - right), tf.abs(left - right)]
        shapes = (shape_of(left), shape_of(right))
        short, long = sorted(shapes, key=len)
        if len(short) == 1 and long == (*short, 1) and short[0] not in (0, 1):
            labels, outputs = (ValueRange(shape=shape) for shape in shapes)
            use = LossUse(name=name, where=where, from_logits=None, labels=labels, outputs=outputs)
            self._losses[name, where, None] = dataclasses.replace(use, is_broadcast=True), None
        known = [
            bool(acts := _activations_of(each)) and acts[-1] != "linear" for each in (left, right)
        ]
        # Of two outputs of models none is a label.
        if known.count(True) == 1 and shape_of(left) and len(left.shape) == len(right.shape):
            labels, outputs = (right, left) if known[0] else (left, right)
            self._note_loss("difference", None, labels, outputs, where=where)

    def facts(self) -> dict[str, Any]:
        return {
            "losses": tuple(_loss_use(*each) for each in list(self._losses.values())),
            "gradients": tuple(
                _gradient_use(use, self._targets.get(use.where))
                for use in list(self._gradients.values())
            ),
            "inputs": tuple(
                _with_values(use, rows)
                for use, gauge in list(self._inputs.values())
                if len(rows := gauge.rows()) and np.isfinite(rows).all()
            ),
        }

    def held(self) -> set[int]:
        """Return the ids of the program's tensors that are kept here."""
        kept = [getattr(self._here, "last_loss", None), *getattr(self._here, "errors", ())]
        return set(map(id, kept))

    def series(self) -> Iterator[tuple[str, str, CodeLine | None, np.ndarray]]:
        """Yield numbers by call that may not be finite: kind, name and line first."""
        for use, gauge in self._losses.values():
            if gauge is not None:
                rows = gauge.rows()
                yield "labels", use.name, use.where, rows[:, 4:6]
                yield "outputs", use.name, use.where, rows[:, :2]
        for where, gauge in self._targets.items():
            yield "loss", "", where, gauge.rows()[:, :1]


def _extremes(values: Any) -> tuple[Any, Any]:
    return tf.reduce_min(values), tf.reduce_max(values)


def _share(condition: Any) -> Any:
    return tf.reduce_mean(tf.cast(condition, tf.float32))


def _gradient_use(use: GradientUse, target: Gauge | None) -> GradientUse:
    rows = np.zeros((0, 4)) if target is None else target.rows()
    ratios, *scales = (
        [row[0] / row[at] for row in rows if np.isfinite(row[[0, at]]).all() and row[at]]
        for at in (1, 2, 3)
    )
    ratio = float(np.median(ratios)) if ratios else use.loss_ratio
    return dataclasses.replace(
        use,
        loss_ratio=ratio,
        is_plain_mean=len(ratios) > 2 and bool(np.ptp(ratios) < 1e-4 * abs(ratio or 0)),
        # A constant times an error, below 0.
        is_negated=use.is_negated
        or any(len(r) > 2 and max(r) < 0 and np.ptp(r) < -1e-2 * max(r) for r in scales),
    )


def _loss_use(use: LossUse, gauge: Gauge | None) -> LossUse:
    rows = np.zeros((0, 11)) if gauge is None else gauge.rows()
    rows = rows if len(rows) else np.full((1, 11), np.nan)
    low, high = (
        [float(each) if np.isfinite(each) else None for each in extreme.reduce(rows, axis=0)]
        for extreme in (np.fmin, np.fmax)  # They pass over NaN.
    )
    assert use.labels is not None and use.outputs is not None
    classes = use.labels.shape[-1] if use.labels.shape else 0
    is_one_hot = (
        low[6] == 1.0
        and low[4] == 0.0
        and high[5] == 1.0
        and classes > 1
        and all(abs(float(share) * classes - 1) < 1e-3 for share in rows[:, 7])
    )
    return dataclasses.replace(
        use,
        outputs=dataclasses.replace(use.outputs, min=low[0], max=high[1]),
        labels=dataclasses.replace(
            use.labels,
            min=low[4],
            max=high[5],
            is_integral=low[6] == 1.0,
            is_one_hot=is_one_hot,
        ),
        row_sum_min=low[2],
        row_sum_max=high[3],
        padded_share=low[8] or 0.0,
        labels_are_sorted=_are_in_order(rows[:, 9], rows[:, 10]),
    )


def _are_in_order(least: np.ndarray, most: np.ndarray) -> bool:
    """Return whether most batches are of one class, and classes come one after the other."""
    is_alone = float(np.mean(least == most)) > 0.5
    return len(least) >= _COMPARED_CALLS and is_alone and bool((most[:-1] <= least[1:]).all())


def _with_values(use: InputUse, rows: np.ndarray) -> InputUse:
    values = dataclasses.replace(
        use.values,
        min=float(rows[:, 0].min()),
        max=float(rows[:, 1].max()),
        mean=float(rows[:, 2].mean()),
        is_integral=bool((rows[:, 3] == 1).all()),
    )
    is_same = len(rows) == _COMPARED_CALLS and bool((rows == rows[0]).all())
    return dataclasses.replace(use, values=values, is_repeated=is_same)


def _activations_of(outputs: Any) -> tuple[str, ...]:
    """Return the activations that made a tensor, the last last; () if they are not known."""
    while True:
        named = getattr(outputs, "_evener_activations", ())
        operation = getattr(outputs, "op", None) if not tf.executing_eagerly() else None
        if named or operation is None or operation.type not in _PASSING:
            break
        outputs = operation.inputs[0]
    if named or operation is None or operation.type not in _FUNCTIONS:
        return named
    return (_FUNCTIONS[operation.type],)


def _operations_behind(tensor: Any, ends: Sequence[str]) -> Iterator[Any]:
    """Yield the operations that a tensor of a graph is computed by, back to some types."""
    waiting, seen = [tensor.op], set[str]()
    while waiting:
        operation = waiting.pop()
        if operation.name not in seen:
            seen.add(operation.name)
            yield operation
            if operation.type not in ends:
                waiting += [each.op for each in operation.inputs]


def _is_data(tensor: Any) -> bool:
    """Return whether a tensor of a graph comes from the data, and no weights have met it."""
    for number, operation in enumerate(_operations_behind(tensor, ("ReadVariableOp",))):
        if operation.type == "ReadVariableOp" and not operation.outputs[0].dtype.is_floating:
            continue  # the state of random numbers
        if operation.type in _WEIGHTS or number >= _MOST_OPERATIONS:
            return False
    return True


def draws_constants(operation: Any) -> bool:
    is_draw = operation.type == "StatelessRandomGetKeyCounter"
    return is_draw and operation.inputs[0].op.type == "Const"


def _steps_back(target: Any) -> list[tuple[Any, float]]:
    """Return operations and their constant factors from a scalar back, while it is one chain."""
    found: list[tuple[Any, float]] = []
    operation = target.op
    while len(found) < _MOST_OPERATIONS:
        inputs, factor = list(operation.inputs), 1.0
        is_product = operation.type in ("Mul", "RealDiv", "DivNoNan")
        if operation.type == "Neg":
            factor = -1.0
        elif is_product:
            values = [tf.get_static_value(each) for each in inputs]
            known = [value is not None and np.ndim(value) == 0 and bool(value) for value in values]
            side = 0 if operation.type == "Mul" and known[0] else 1
            if known[side]:
                number = float(values[side])
                factor = number if operation.type == "Mul" else 1 / number
                inputs = [inputs[1 - side]]
            elif operation.type == "Mul" or shape_of(inputs[1]):
                inputs = []  # of two unknown values
            else:
                factor = float("nan")  # by a size that is known when it runs
        found.append((operation, factor))
        is_chain = is_product or operation.type in ("Neg", *_REDUCTIONS, *_PASSING)
        if not is_chain or not inputs:
            return found
        operation = inputs[0].op
    return found


def _scale_of(chain: list[tuple[Any, float]]) -> float | None:
    """Return what the mean over the samples of a batch is multiplied by; None if not known."""
    scale = 1.0
    for operation, factor in chain:
        scale *= factor
        if operation.type in _REDUCTIONS and shape_of(operation.inputs[0]):
            size = math.prod(shape_of(operation.inputs[0])) if operation.type == "Sum" else 1
            # A sum that nothing divides is one, however many terms it has.
            size = size if size > 0 else math.inf if abs(scale) == 1 else math.nan
            return None if math.isnan(scale * size) else abs(scale) * size
    return None


def shape_of(value: Any) -> tuple[int, ...]:
    """Return a shape, -1 for a size that is not known; () for a rank that is not."""
    shape = getattr(value, "shape", ())
    if getattr(shape, "rank", 0) is None:
        return ()
    return tuple(-1 if size is None else int(size) for size in shape)


def replicas_here() -> int:
    strategy = tf.distribute.get_strategy()
    return strategy.num_replicas_in_sync if tf.distribute.in_cross_replica_context() is False else 1
