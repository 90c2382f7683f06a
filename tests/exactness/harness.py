"""Do the same thing on one device and on the candidate, and demand the same result."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from .candidates import MakePlace, OneDevice, Place, Shares, make_candidate
from .compare import Results, assert_equal, equal, state_of
from .models import NUM_SAMPLES, NUM_WHOLE, OPTIMIZERS, Arrays, Case
from .references import shared
from .tolerances import LAW

SEED = 7
BATCH = 16
Experiment = Callable[[Place], Results]
Compiled = Callable[[], Mapping[str, object]] | Mapping[str, object]
"""Arguments of `compile`, or what makes them: optimizers and metrics are made in the scope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Number of stand-ins, their shares, and the changes of the shares while training."""

    num_devices: int
    shares: Shares = "even"
    by_epoch: tuple[Sequence[float], ...] = ()
    by_batch: tuple[Sequence[float], ...] = ()

    def __str__(self) -> str:
        if self.by_epoch or self.by_batch:
            return f"{self.num_devices}-by_{'epoch' if self.by_epoch else 'batch'}"
        text = self.shares if isinstance(self.shares, str) else "measured"
        if isinstance(self.shares, tuple):
            text = "uneven"
        return f"{self.num_devices}-{text}"


UNEVEN = {1: (1.0,), 2: (5, 3), 3: (5, 3, 1), 5: (4, 0, 2, 1, 3)}
CHANGES: dict[int, tuple[Sequence[float], ...]] = {
    1: ((2,), (1,)),
    2: ((3, 1), (1, 4), (0, 1), (0.625, 0.375)),
    3: ((1, 2, 3), (3, 0, 1), (1, 1, 1), (0, 0, 2)),
    5: ((1, 2, 3, 4, 5), (0, 1, 0, 1, 0), (1, 1, 1, 1, 1), (9, 1, 1, 1, 1)),
}
TWO = Layout(num_devices=2, shares=UNEVEN[2])
THREE = Layout(num_devices=3, shares=UNEVEN[3])
FIVE = Layout(num_devices=5, shares=UNEVEN[5])


class ChangeShares(keras.callbacks.Callback):
    """Give a place the next shares of a list, before every batch or every epoch."""

    def __init__(self, place: Place, layout: Layout) -> None:
        super().__init__()
        self.place, self.layout, self.num_batches = place, layout, 0

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        if self.layout.by_epoch:
            self.place.set_shares(self.layout.by_epoch[epoch % len(self.layout.by_epoch)])

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        if self.layout.by_batch:
            changes = self.layout.by_batch
            self.place.set_shares(changes[self.num_batches % len(changes)])
            self.num_batches += 1


def start(seed: int = SEED) -> None:
    """Forget earlier models and start from a seed, so that weights begin the same."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(seed)


@contextlib.contextmanager
def eager_functions() -> Iterator[None]:
    """Run `tf.function`s as Python."""
    tf.config.run_functions_eagerly(True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Even though the `tf.config.experimental_run")
            yield
    finally:
        tf.config.run_functions_eagerly(False)


def on_one_device(experiment: Experiment, name: str, *, eagerly: bool) -> Results:
    """Run an experiment on one device; the processes of a test run share results with a name."""
    start()
    with eager_functions() if eagerly else contextlib.nullcontext():
        if not name:
            return experiment(OneDevice())
        return shared(name + " eagerly" * eagerly, lambda: experiment(OneDevice()))


def agree(
    experiment: Experiment,
    *layouts: Layout,
    within: float = LAW,
    make_place: MakePlace = make_candidate,
    name: str = "",
) -> Results:
    """Run an experiment on one device and on the candidate in each layout; compare.

    On one device it runs operation by operation, which takes a fraction of the time of traces. What
    cannot run so, or differs, is compared with functions as they are written.
    """
    reference, is_eager = None, True
    with contextlib.suppress(Exception, pytest.fail.Exception):
        reference = on_one_device(experiment, name, eagerly=True)
    for layout in layouts or (TWO,):
        start()
        place = make_place(layout.num_devices, layout.shares)
        candidate = experiment(place)
        if is_eager and (reference is None or not equal(reference, candidate, within=within)):
            reference, is_eager = on_one_device(experiment, name, eagerly=False), False
        assert reference is not None
        assert_equal(reference, candidate, within=within, where=str(layout))
    assert reference is not None
    return reference


def train_case(
    place: Place,
    case: Case,
    optimizer: str,
    *,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    data: tuple[Arrays, Arrays] | None = None,
) -> dict[str, object]:
    """Train a case for two epochs of five steps.

    To save tracing, the work is shared out over the optimizers: under SGD and Adam the last
    batch is partial, and under SGD the model is also evaluated and predicts.
    """
    x, y = data or case.data(samples_for(optimizer))
    with place.scope():
        model = case.build()
        model.compile(OPTIMIZERS[optimizer](), **case.compiled())
    history = model.fit(
        x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks)
    )
    results = {**state_of(model), "history": history.history}
    if optimizer == "sgd":
        results["evaluate"] = model.evaluate(x, y, batch_size=20, verbose=0, return_dict=True)
        results["predict"] = model.predict(take(x, slice(3, 40)), batch_size=20, verbose=0)
    return results


def samples_for(optimizer: str) -> int:
    return NUM_SAMPLES if optimizer in ("sgd", "adam") else NUM_WHOLE


def take(arrays: Arrays, rows: slice) -> Arrays:
    if isinstance(arrays, Mapping):
        return {name: array[rows] for name, array in arrays.items()}
    return arrays[rows]


def sgd(**settings: object) -> keras.optimizers.Optimizer:
    """Return SGD with momentum: the optimizer of tests that are about something else."""
    return keras.optimizers.SGD(**{"learning_rate": 0.05, "momentum": 0.9, **settings})


def fit_model(
    place: Place,
    build: Callable[[], keras.Model],
    data: Sequence[object],
    compiled: Compiled,
    **fit: object,
) -> dict[str, object]:
    return fit_again(place, compile_model(place, build, compiled), data, **fit)


def agree_in_fit(
    build: Callable[[], keras.Model],
    data: Sequence[object],
    compiled: Compiled,
    *layouts: Layout,
    within: float = LAW,
    make_place: MakePlace = make_candidate,
    name: str = "",
    **fit: object,
) -> Results:
    """Build, compile and fit on one device and on the candidate in each layout; compare."""

    def experiment(place: Place) -> Results:
        return fit_model(place, build, data, compiled, **fit)

    return agree(experiment, *layouts, within=within, make_place=make_place, name=name)


def compile_model(
    place: Place, build: Callable[[], keras.Model], compiled: Compiled
) -> keras.Model:
    with place.scope():
        model = build()
        given = compiled() if callable(compiled) else compiled
        model.compile(**{"optimizer": sgd(), **given})
    return model


def fit_again(
    place: Place, model: keras.Model, data: Sequence[object], **fit: object
) -> dict[str, object]:
    """Fit a compiled model; return its state and the history."""
    settings: dict[str, object] = {"epochs": 2, "shuffle": False, "verbose": 0, **fit}
    if len(data) > 1:
        settings.setdefault("batch_size", BATCH)
    history = model.fit(*data, **settings)
    return {**state_of(model), "history": history.history}


def unequal_weights(num_samples: int) -> np.ndarray:
    """Return sample weights that differ, some zero, and whose mean is not one."""
    weights = np.linspace(0.2, 2.6, num_samples).astype("float32")
    weights[::5] = 0.0
    return weights


def usually(values: Sequence[Any], usual: Container[Any]) -> list[Any]:
    """Return parameters for a test; those that are not usual are marked as long."""
    return [v if v in usual else pytest.param(v, marks=pytest.mark.long) for v in values]
