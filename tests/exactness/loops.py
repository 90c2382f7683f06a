"""Run the same custom loop on one device and on several.

A loop is written once, against what `tf.distribute` programs call: ``run``, ``reduce``,
``gather``, ``experimental_distribute_dataset``. A strategy answers these calls by its
replicas; `Alone` answers them as a program without any strategy would: ``run`` is a call.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener.errors import EvenerWarning

from .candidates import CANDIDATE, MakePlace, Mirrored, OneDevice, Place, make_candidate
from .compare import Results, state_of
from .harness import BATCH, Layout, agree, samples_for, sgd
from .models import OPTIMIZERS, Arrays, Case, mlp
from .tolerances import LAW

CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
Batch = tuple[Any, ...]
LossOf = Callable[..., tf.Tensor]


class Alone:
    """One device: nothing is distributed, and ``run`` is a call."""

    num_replicas_in_sync = 1

    def run(self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return fn(*args, **(kwargs or {}))

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        if axis is None:
            return value
        return (tf.reduce_sum if reduce_op == "SUM" else tf.reduce_mean)(value, axis)

    def gather(self, value: Any, axis: int) -> Any:
        del axis
        return value

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        return (value,)

    def experimental_distribute_dataset(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        return dataset

    def distribute_datasets_from_function(self, dataset_fn: Callable[[Any], Any]) -> Any:
        return dataset_fn(tf.distribute.InputContext())


def calls_of(place: Place) -> Any:
    """Return what answers a loop's calls at a place."""
    if isinstance(place, OneDevice):
        return Alone()
    return place.strategy if isinstance(place, Mirrored) else place


def batches(*arrays: Any, batch: int = BATCH, drop_remainder: bool = False) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensor_slices(arrays)
    return dataset.batch(batch, drop_remainder=drop_remainder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Model, optimizers, step and metrics of a loop.

    Attributes:
        model: The model; its weights are compared.
        optimizers: Their variables are compared.
        step: Called for each replica with the entries of a batch; returns what is logged.
        metrics: Updated in ``step``; logged and reset after every epoch.
    """

    model: keras.Model
    optimizers: tuple[keras.optimizers.Optimizer, ...]
    step: Callable[..., Any]
    metrics: tuple[keras.Metric, ...] = ()

    def state(self) -> dict[str, object]:
        return {
            **state_of(self.model),
            "optimizers": {
                str(number): {f"{k} {v.name}": v.numpy() for k, v in enumerate(optimizer.variables)}
                for number, optimizer in enumerate(self.optimizers)
            },
        }


def train_step(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    loss_of: LossOf,
    metrics: Sequence[keras.Metric] = (),
    *,
    through_apply: bool = False,
    change: Callable[..., Any] = lambda gradients: gradients,
) -> Callable[..., tf.Tensor]:
    """Return the step that most people write."""

    def step(x: Any, y: Any, *more: Any) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True)
            loss = loss_of(y, y_pred, *more)
            scaled = optimizer.scale_loss(loss)
        gradients = change(tape.gradient(scaled, model.trainable_variables))
        if through_apply:
            optimizer.apply(gradients, model.trainable_variables)
        else:
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        for metric in metrics:
            if type(metric) is keras.metrics.Mean:
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred, *more)
        return loss

    return step


def classifier(
    build: Callable[[], keras.Model] = mlp,
    metrics: Callable[[], tuple[keras.Metric, ...]] = lambda: (),
) -> Callable[[], Parts]:
    """Return what makes a loop that trains a classifier with SGD and logs its loss."""

    def make() -> Parts:
        model, optimizer = build(), sgd()
        tracked = (keras.metrics.Mean(name="loss"), *metrics())
        step = train_step(model, optimizer, CROSS_ENTROPY, tracked)
        return Parts(model=model, optimizers=(optimizer,), step=step, metrics=tracked)

    return make


def nested_parts() -> Parts:
    """Return the parts of a loop whose step calls a function for its loss."""
    model, optimizer = mlp(), sgd()

    @tf.function
    def forward(x: Any, y: Any) -> Any:
        return CROSS_ENTROPY(y, model(x, training=True))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = forward(x, y)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return Parts(model=model, optimizers=(optimizer,), step=step)


@dataclass(slots=True)
class Log:
    """Losses and metrics that a loop has logged.

    Attributes:
        losses: Per step, in the order of steps.
        epochs: Results of the metrics after each epoch, by name.
        num_traces: Number of traces of the function around ``run``.
    """

    losses: list[Any] = field(default_factory=list)
    epochs: dict[str, list[float]] = field(default_factory=dict)
    num_traces: int = 0

    def results(self) -> dict[str, object]:
        by_name = tf.nest.map_structure(lambda *steps: np.asarray(steps), *self.losses)
        return {"losses": by_name, "epochs": self.epochs}


def run_loop(
    place: Place,
    parts: Parts,
    dataset: tf.data.Dataset,
    *,
    epochs: int = 2,
    layout: Layout | None = None,
    reduce_op: str = "SUM",
) -> Log:
    """Train; the loop over the batches is a Python loop around one `tf.function`."""
    strategy = calls_of(place)
    log = Log()

    @tf.function
    def train(batch: Batch) -> Any:
        log.num_traces += 1
        logged = strategy.run(parts.step, args=batch)
        return tf.nest.map_structure(lambda v: strategy.reduce(reduce_op, v, axis=None), logged)

    distributed = strategy.experimental_distribute_dataset(dataset)
    shares = _Changes(place, layout)
    for _ in range(epochs):
        shares.next_epoch()
        for batch in distributed:
            shares.next_batch()
            log.losses.append(tf.nest.map_structure(float, train(batch)))
        note_metrics(parts.metrics, log)
    return log


def note_metrics(metrics: Sequence[keras.Metric], log: Log) -> None:
    for metric in metrics:
        log.epochs.setdefault(metric.name, []).append(float(metric.result()))
        metric.reset_state()


class _Changes:
    def __init__(self, place: Place, layout: Layout | None) -> None:
        self._place = place
        self._by_epoch = layout.by_epoch if layout else ()
        self._by_batch = layout.by_batch if layout else ()
        self._epochs = self._batches = 0

    def next_epoch(self) -> None:
        if self._by_epoch:
            self._place.set_shares(self._by_epoch[self._epochs % len(self._by_epoch)])
            self._epochs += 1

    def next_batch(self) -> None:
        if self._by_batch:
            self._place.set_shares(self._by_batch[self._batches % len(self._by_batch)])
            self._batches += 1


def loop_results(
    place: Place, make: Callable[[], Parts], dataset: tf.data.Dataset, **how: Any
) -> dict[str, object]:
    """Make the parts in the scope, train, and return everything that must agree."""
    with place.scope():
        parts = make()
    log = run_loop(place, parts, dataset, **how)
    return {**parts.state(), **log.results()}


def agree_in_loop(
    make: Callable[[], Parts],
    dataset: tf.data.Dataset,
    *layouts: Layout,
    within: float = LAW,
    make_place: MakePlace = make_candidate,
    **how: Any,
) -> Results:
    """Train by a loop on one device and on the candidate in each layout; compare."""

    def experiment(place: Place) -> Results:
        return loop_results(place, make, dataset, **how)

    return agree(experiment, *layouts, within=within, make_place=make_place)


def loss_and_metrics(case: Case) -> tuple[LossOf, tuple[keras.Metric, ...]]:
    """Return the loss and the metrics of a case, as a loop would write them."""
    compiled = case.compiled()
    mean = keras.metrics.Mean(name="loss")
    if isinstance(compiled["loss"], Mapping):
        return _of_two_outputs(compiled), (mean, *_named_metrics())
    loss = compiled["loss"]
    loss_of = keras.losses.MeanSquaredError() if loss == "mse" else loss
    if compiled.get("metrics") == ["accuracy"]:
        return loss_of, (mean, keras.metrics.SparseCategoricalAccuracy())
    return loss_of, (mean, keras.metrics.MeanAbsoluteError(), keras.metrics.RootMeanSquaredError())


def _of_two_outputs(compiled: Mapping[str, Any]) -> LossOf:
    weights = compiled["loss_weights"]
    losses = {
        "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "size": keras.losses.MeanSquaredError(),
    }

    def loss_of(y: Any, y_pred: Any) -> tf.Tensor:
        return sum(weights[name] * losses[name](y[name], y_pred[name]) for name in losses)

    return loss_of


class _OfOneOutput(keras.metrics.MeanMetricWrapper):
    def __init__(self, output: str, fn: Callable[..., Any]) -> None:
        super().__init__(fn, name=output)
        self._output = output

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(y[self._output], y_pred[self._output], sample_weight)


def _named_metrics() -> tuple[keras.Metric, ...]:
    return (
        _OfOneOutput("kind", keras.metrics.sparse_categorical_accuracy),
        _OfOneOutput("size", keras.metrics.mean_absolute_error),
    )


def case_parts(case: Case, optimizer: str) -> Parts:
    model = case.build()
    made = OPTIMIZERS[optimizer]()
    loss, metrics = loss_and_metrics(case)
    if not case.name.startswith("add_loss"):
        return Parts(
            model=model,
            optimizers=(made,),
            step=train_step(model, made, loss, metrics),
            metrics=metrics,
        )
    return Parts(
        model=model,
        optimizers=(made,),
        step=train_step(model, made, lambda y, p: loss(y, p) + sum(model.losses), metrics),
        metrics=metrics,
    )


def loop_over_case(
    place: Place, case: Case, optimizer: str, layout: Layout | None = None
) -> Results:
    """Train a case by a loop: two epochs of five steps, the last batch partial under SGD."""
    x, y = case.data(samples_for(optimizer))
    with place.scope():
        parts = case_parts(case, optimizer)
    log = run_loop(place, parts, batches(x, y), layout=layout)
    results = {**parts.state(), **log.results()}
    if optimizer == "sgd":
        results["evaluate"] = evaluate_loop(place, parts, batches(x, y, batch=20))
        results["predict"] = predict_loop(place, parts.model, x)
    return results


def evaluate_loop(place: Place, parts: Parts, dataset: tf.data.Dataset) -> dict[str, float]:
    """Return what the metrics that compare targets and predictions say of a dataset."""
    strategy = calls_of(place)
    metrics = [m for m in parts.metrics if type(m) is not keras.metrics.Mean]

    def step(x: Any, y: Any) -> None:
        y_pred = parts.model(x, training=False)
        for metric in metrics:
            metric.update_state(y, y_pred)

    @tf.function
    def evaluate(batch: Batch) -> None:
        strategy.run(step, args=batch)

    for batch in strategy.experimental_distribute_dataset(dataset):
        evaluate(batch)
    log = Log()
    note_metrics(metrics, log)
    return {name: values[0] for name, values in log.epochs.items()}


def predict_loop(place: Place, model: keras.Model, x: Arrays, batch: int = 20) -> Any:
    """Return the predictions of all samples, in their order."""
    strategy = calls_of(place)

    @tf.function
    def predict(samples: Any) -> Any:
        outputs = strategy.run(lambda own: model(own, training=False), args=(samples,))
        return tf.nest.map_structure(lambda v: strategy.gather(v, axis=0), outputs)

    dataset = tf.data.Dataset.from_tensor_slices(x).batch(batch)
    parts = [predict(batch) for batch in strategy.experimental_distribute_dataset(dataset)]
    return tf.nest.map_structure(lambda *leaves: np.concatenate(leaves), *parts)


@contextlib.contextmanager
def saying(*codes: str) -> Iterator[None]:
    """Demand that evener warns with exactly these codes inside, each once."""
    if CANDIDATE not in ("evener", "cut"):
        yield
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    ours = [str(w.message) for w in caught if issubclass(w.category, EvenerWarning)]
    found = [text[1:8] for text in ours]
    assert sorted(found) == sorted(codes), ours
