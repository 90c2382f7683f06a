"""`CheckpointCallback`: Keras's ``fit`` goes on where it was, with the very next batch.

    epoch      0          1          2
    iterator   1 (2)      3 (4)      5          in brackets: made by Keras, and not used
    batches    |||||      |||||      ||#        a checkpoint here: iterator 5, 2 batches, step 2

A resumed fit makes the earlier iterators again, so that a `tf.data` pipeline shuffles as often as
before, and begins with the batch behind those that were seen. How the earlier ones are made again
depends on the data:

    arrays       not at all: their order comes from the seed and the number of the iterator
    datasets     they are made and dropped
    generators   their batches are drawn and dropped
    PyDataset    the hooks of the epochs are called, each with its state of the random generators
"""

from __future__ import annotations

import contextlib
import copy
import functools
import numbers
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from evener._tf_private import fits
from evener.checkpoint import others, random_state
from evener.checkpoint.checkpoint import Checkpoint, Position, Termination, wrong_number
from evener.checkpoint.storage import DamagedError, Loaded, check_random, read_record
from evener.checkpoint.variables import Count
from evener.errors import CheckpointError, warn

Plain = bool | int | float | None
"""Log as JSON has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPosition:
    seed: Count  # of the order of arrays
    fingerprint: str = ""  # of the data, as far as it is in arrays; of fits of unchanged scripts
    step: Count = 0  # steps done in the epoch
    iterator: Count = 1  # number of the iterator that gives the next batch, from 1
    num_drawn: Count = 0  # batches that it has given
    drawn_before: tuple[Count, ...] = ()  # by the iterators before it; generators only
    num_batches: Count | None = None  # of an epoch, where it is known
    # Iterators of the validation data, which may draw their order from the same seeds: made before
    # the iterator that gives the next batch, and in all
    num_validations_before: Count = 0
    num_validations: Count = 0
    # States of the random generators when ``fit`` was called; and at the beginnings and before the
    # ends of the epochs, in turns: `keras.utils.PyDataset` only.
    random_at_fit: random_state.State = field(default_factory=dict)
    random_at_epochs: tuple[random_state.State, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _History:
    epochs: tuple[Count, ...]
    logs: dict[str, tuple[Plain, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredFit:
    data: DataPosition
    callbacks: dict[str, dict[str, Any]]
    best_weights: dict[str, Count]
    log_bytes: dict[str, Count]
    history: _History
    has_stopped: bool


def read_fit(state: Mapping[str, Any]) -> _StoredFit:
    """Return what a checkpoint has of a ``fit``; see `Checkpoint.load`."""
    stored = read_record(state.get("fit"), _StoredFit, "state.fit")
    paths = [entry["path"] for entry in state["arrays"]]
    data = stored.data
    for random in (data.random_at_fit, *data.random_at_epochs):
        check_random(random)
    known = [
        f"{name}/{k}"
        for name, count in stored.best_weights.items()
        for k in range(min(count, len(paths) + 1))
    ]
    if {*known} ^ {*paths} or not data.iterator or data.num_drawn < data.step:
        raise DamagedError("state.json: the entries of fit do not belong together")
    return stored


class FitFeed:
    """Follower of the data of a ``fit``, which begins it at a position."""

    def __init__(
        self,
        resumed: DataPosition | None,
        random_at_fit: random_state.State,
        fingerprint: str = "",
        validation: Any = None,
    ) -> None:
        self.iterator: Any = None
        self._validation = validation
        self._num_validations = 0 if resumed is None else resumed.num_validations
        self._num_validations_made = self._num_validations_missed = 0
        self._num_validations_at = [0, 0]  # before the present and the latest iterator
        self._resumed = resumed
        seed = random_state.derived_seed() if resumed is None else resumed.seed
        self._start = resumed or DataPosition(
            seed=seed, random_at_fit=random_at_fit, fingerprint=fingerprint
        )
        self._seed = seed
        with tf.device("cpu:0"):
            self._ordinal = tf.Variable(tf.constant(0, tf.int64), trainable=False)
        self._num_iterators = self._iterator = 0
        self._is_made_again = self._has_yielded = False
        self._drawn_before = list(self._start.drawn_before)
        self._random_at_epochs = list(self._start.random_at_epochs)
        self._drawn_at_epoch = 0
        self._step = 0
        self._has_begun = False
        self._is_in_epoch = False
        self._resumes_epoch = resumed is not None and resumed.step > 0

    def begin(self) -> None:
        """Follow the iterators from now on: those before have only built the model."""
        self._has_begun = True

    @property
    def kind(self) -> str:
        return fits.data_kind(self.iterator)

    def take_step(self, step: int) -> None:
        self._step = step
        self._resumes_epoch = False

    def position(self) -> DataPosition:
        ordinal, drawn = self._iterator, self._drawn_at_epoch + self._step
        before, step = self._drawn_before, self._step
        validations = self._num_validations_at[0]
        if not self._is_in_epoch:
            step = 0
            if not fits.keeps_iterator(self.iterator):
                before = [*before, drawn] if self.kind == "generator" else before
                ordinal, drawn = self._num_iterators + 1, 0
                validations = self._num_validations
        return replace(
            self._start,
            step=step,
            iterator=ordinal,
            num_drawn=drawn,
            drawn_before=tuple(before),
            num_batches=fits.num_batches(self.iterator),
            num_validations=self._num_validations,
            num_validations_before=validations,
            random_at_epochs=tuple(self._random_at_epochs),
        )

    def shuffle(self, indices: tf.Tensor) -> tf.Tensor:
        """Return indices in an order that the seed and the number of the iterator determine."""
        seed = tf.stack([tf.constant(self._seed, tf.int64), self._ordinal.read_value()])
        # With shuffle="batch", each batch has another order.
        folded = tf.random.fold_in(seed, tf.reduce_min(indices))  # pyright: ignore[reportArgumentType]
        shuffle = tf.random.experimental.stateless_shuffle  # pyright: ignore[reportAttributeAccessIssue]
        return shuffle(indices, seed=folded)

    def iterate(self, iterator: Any, dataset: Any) -> Any:
        """Return the dataset to iterate: at first, that behind the batches that were seen."""
        if not self._has_begun:
            return dataset
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            self._num_iterators += 1
            self._num_validations_at[1] = self._num_validations
            self._ordinal.assign(self._num_iterators)
            # At the end of an epoch, Keras may begin the data again at once.
            self._is_made_again = self._has_yielded
            if not self._is_made_again:
                self._begin_iterator()
            return dataset
        if self.kind == "dataset":
            for _ in range(resumed.iterator - 1):
                iter(dataset)
        elif self.kind == "generator":
            for number in resumed.drawn_before:
                batches = iter(dataset)
                for _ in range(number):
                    next(batches)
        self._num_validations_missed = resumed.num_validations
        self._make_validations(resumed.num_validations_before)
        self._num_validations_at = [resumed.num_validations_before] * 2
        self._num_iterators = self._iterator = resumed.iterator
        self._drawn_at_epoch = resumed.num_drawn - resumed.step
        self._step = resumed.step
        self._ordinal.assign(self._num_iterators)
        return dataset.skip(resumed.num_drawn) if resumed.num_drawn else dataset

    def validate(self) -> None:
        self._make_validations(self._num_validations_missed)
        self._num_validations_made += 1

    def end_validation(self) -> None:
        """Count the iterators of a validation, which is not done again."""
        self._num_validations += self._num_validations_made
        self._num_validations_made = 0

    def _make_validations(self, number: int) -> None:
        self._num_validations_missed -= number
        if isinstance(self._validation, tf.data.Dataset):
            for _ in range(number):
                iter(self._validation)

    def enumerate_epoch(self, iterator: Any, steps: Iterator[Any]) -> Iterator[Any]:
        """Yield the steps of an epoch that were not done before."""
        if not self._has_begun:
            yield from steps
            return
        resumed = self._resumed
        self._begin_epoch(iterator, resumed)
        is_first = resumed is not None
        for begin, end, batches in self._noting_end(steps):
            self._has_yielded = True
            if is_first:
                assert resumed is not None
                seen = resumed.num_drawn - resumed.step
                fits.set_counts(iterator, more_seen=seen, batches=resumed.num_batches)
                is_first = False
            if resumed is None or begin >= resumed.step:
                yield begin, end, batches

    def end_epoch(self) -> None:
        if fits.keeps_iterator(self.iterator):
            if self._is_made_again:
                self._begin_iterator()
            self._drawn_at_epoch, self._step = self._drawn_at_epoch + self._step, 0
        self._is_in_epoch = False
        self._resumes_epoch = False

    def finish_logs(self, model: Any, logs: Any) -> Any:
        """Return the metrics of the checkpoint for an epoch whose steps were all done before."""
        return model.get_metrics_result() if self._resumes_epoch and not logs else logs

    def _begin_epoch(self, iterator: Any, resumed: DataPosition | None) -> None:
        self._is_in_epoch = True
        self._is_made_again = self._has_yielded = False
        if self.kind != "py_dataset":
            return
        begin = random_state.read()
        if resumed is not None:
            states = self._random_at_epochs
            if resumed.step:
                # The epoch that goes on.
                begin = states.pop() if len(states) % 2 else states.pop(-2)
                del states[len(states) // 2 * 2 :]
            self._call_hooks(states)
        random_state.restore(begin)
        self._random_at_epochs.append(begin)

    def pass_over(self) -> None:
        """Leave the data, which another fit may take, as all steps have left it that were done."""
        if self.kind == "dataset":
            fits.begin_data(self.iterator)
            self._make_validations(self._num_validations_missed)
        elif self.kind == "py_dataset":
            self._call_hooks(self._random_at_epochs)

    def _call_hooks(self, states: list[random_state.State]) -> None:
        for at_begin, at_end in zip(states[::2], states[1::2], strict=True):
            fits.call_epoch_hooks(
                self.iterator,
                before_begin=functools.partial(random_state.restore, at_begin),
                before_end=functools.partial(random_state.restore, at_end),
            )

    def _noting_end(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Yield steps; note the random states before Keras calls the hook of the epoch's end."""
        if self.kind != "py_dataset":
            yield from steps
            return
        while True:
            before = random_state.read()
            try:
                step = next(steps)
            except StopIteration:
                self._random_at_epochs.append(before)
                return
            yield step

    def _begin_iterator(self) -> None:
        if self.kind == "generator" and self._iterator:
            self._drawn_before.append(self._drawn_at_epoch + self._step)
        self._iterator = self._num_iterators
        self._num_validations_at[0] = self._num_validations_at[1]
        self._drawn_at_epoch = self._step = 0


_ABSENT = object()


def _plain_attributes(callback: Any) -> dict[str, Any]:
    values = {name: _plain(value) for name, value in vars(callback).items() if name != "params"}
    kinds: Any = object
    if type(callback).__module__.startswith("keras."):
        # Their texts and lists are what the program has configured.
        kinds = bool | int | float | None
    return {name: v for name, v in values.items() if v is not _ABSENT and isinstance(v, kinds)}


def _set_attributes(callbacks: Mapping[str, Any], stored: Mapping[str, Mapping[str, Any]]) -> None:
    for name, callback in callbacks.items():
        for key, value in stored.get(name, {}).items():
            now: Any = getattr(callback, key, None)
            # The program may know the container by another name too.
            if type(now) is type(value) is list:
                now[:] = value
            elif type(now) is type(value) is dict:
                now.clear()
                now.update(value)
            else:
                setattr(callback, key, value)


def _plain(value: Any) -> Any:
    """Return a copy of a value as JSON has it; `_ABSENT` if JSON has no such value."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, numbers.Number) and hasattr(value, "item"):
        return value.item()  # pyright: ignore[reportAttributeAccessIssue]
    if type(value) is list:
        copied = [*map(_plain, value)]
        return _ABSENT if _ABSENT in copied else copied
    if type(value) is dict and all(type(key) is str for key in value):
        entries = {key: _plain(each) for key, each in value.items()}
        return _ABSENT if _ABSENT in entries.values() else entries
    return _ABSENT


def is_plain(value: Any) -> bool:
    """Return whether a checkpoint keeps a value that a callback has as an attribute."""
    return _plain(value) is not _ABSENT


class CheckpointCallback(keras.callbacks.Callback):
    """Saves checkpoints in ``fit``, and resumes from the newest one.

    The same script, run again, goes on in the middle of the epoch with the batch after the last one
    of the checkpoint. Logs and history are those of a run without interruption. Arrays are shuffled
    by a seed that the checkpoint has; `tf.data` pipelines must be seeded. With SIGINT or SIGTERM a
    checkpoint is written at the end of the step, and then the signal acts: as KeyboardInterrupt, by
    the exit code 143, or by the handler of the program. A second signal acts at once.

    Args:
        path: Folder for the checkpoints, of this training only; see `evener.Checkpoint`.
        every_steps: Number of steps between checkpoints, from 1; None for none within epochs.
        every_seconds: Seconds between checkpoints, above 0; None for none.
        every_epoch: Whether each epoch ends with a checkpoint.
        keep: Number of newest checkpoints to keep, from 1.
        on_failure: ``"warn"`` to train on if a checkpoint cannot be written, with the warning
            CKPT-009; ``"raise"`` for CKPT-004.
        clock: Returns the time in seconds; for tests.
        **trackables: Other objects with variables, by name; see `evener.Checkpoint`.

    Raises:
        CheckpointError: CKPT-001 for a wrong number.

    Example:
        >>> import tempfile, keras, numpy as np
        >>> folder = tempfile.mkdtemp()
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> callback = CheckpointCallback(folder, every_steps=100)
        >>> _ = model.fit(np.ones((8, 2)), np.ones(8), epochs=2, verbose=0, callbacks=[callback])
        >>> callback.checkpoint.latest.endswith("step-00000002")
        True
    """

    fingerprint = ""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        every_epoch: bool = True,
        keep: int = 3,
        on_failure: Literal["warn", "raise"] = "warn",
        clock: Callable[[], float] = time.monotonic,
        **trackables: Any,
    ) -> None:
        super().__init__()
        _check("every_steps", every_steps)
        _check("every_seconds", every_seconds)
        self.checkpoint = Checkpoint(path, keep=keep, **trackables)
        self._trackables = trackables
        self._every_steps, self._every_seconds = every_steps, every_seconds
        self._every_epoch, self._on_failure, self._clock = every_epoch, on_failure, clock
        self._feed: FitFeed | None = None
        self._loaded: Loaded | None = None
        # Logs of all epochs, as JSON has them.
        self._history: dict[str, Any] = {"epochs": [], "logs": {}}
        fits.follow_fits(_run_fit)

    def run_fit(
        self,
        model: keras.Model,
        callbacks: list[Any],
        proceed: Callable[[list[Any]], Any],
        arguments: Mapping[str, Any],
    ) -> Any:
        """Run a ``fit`` of Keras: follow its data and signals, and resume it."""
        self.checkpoint = Checkpoint(
            self.checkpoint.path, keep=self.checkpoint.keep, model=model, **self._trackables
        )
        before_self = [item for item in callbacks if item is not self]
        self._callbacks = {
            f"{index} {type(item).__name__}": item for index, item in enumerate(before_self)
        }
        self._before = {name: _plain_attributes(item) for name, item in self._callbacks.items()}
        random_before = random_state.read()
        self._termination = Termination()
        try:
            self._loaded = self.checkpoint.load(read_fit, locks=True)
            stored: _StoredFit | None = None if self._loaded is None else self._loaded.more
            if stored is not None:
                random_state.restore(stored.data.random_at_fit)
                cuts = others.writes()
                for name, length in stored.log_bytes.items():
                    logger: Any = self._callbacks.get(name)
                    if not isinstance(logger, keras.callbacks.CSVLogger):
                        continue
                    logger.append = True
                    if cuts and tf.io.gfile.exists(logger.filename):
                        with tf.io.gfile.GFile(logger.filename, "rb") as file:
                            rows = file.read(length)
                        with tf.io.gfile.GFile(logger.filename, "wb") as file:
                            file.write(rows)
            self._feed = FitFeed(
                stored and stored.data,
                random_state.read(),
                fingerprint=self.fingerprint,
                validation=arguments.get("validation_data"),
            )
            self._history = {"epochs": [], "logs": {}}
            if stored is not None:
                logs = {name: [*values] for name, values in stored.history.logs.items()}
                self._history = {"epochs": [*stored.history.epochs], "logs": logs}
            with fits.following(self._feed, model), self._termination, fits.beginning_at(model):
                # Other callbacks change what it saves, such as the learning rate.
                return proceed([*before_self, self])
        except CheckpointError:
            if self._loaded is not None:
                # Nothing is restored.
                random_state.restore(random_before)
            raise
        finally:
            self._wait()
            self.checkpoint.leave_folder()
            self._feed = self._loaded = None

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Restore the state, if there is a checkpoint."""
        if self._feed is None or self._feed.iterator is None:
            raise CheckpointError(
                "CKPT-008",
                "The position in the data cannot be followed.",
                why="The callback sees the data of Keras's own fit, and this training does not "
                "call it.",
                fix="Use model.fit(..., callbacks=[callback]), or evener.Checkpoint in a loop of "
                "your own.",
            )
        self._epoch = self._step = self._total = 0
        self._saved_at, self._saved_total = self._clock(), 0
        self._validation_metrics: list[np.ndarray] | None = None
        fits.build_from_data(self.model, self._feed.iterator)
        self._feed.begin()
        if self._feed.kind == "dataset" and fits.shuffles_without_seed(self._feed.iterator):
            warn(
                "CKPT-012",
                "A resumed run will see the batches in another order.",
                why="The tf.data pipeline shuffles without a seed, so each process draws its own.",
                fix="Use dataset.shuffle(size, seed=1), or call keras.utils.set_random_seed(1) "
                "first.",
            )
        if self._loaded is None:
            return
        self.checkpoint.assign(self._loaded)
        position, stored = self._loaded.state["position"], self._loaded.more
        arrays = self._loaded.arrays
        for name, count in stored.best_weights.items():
            if name in self._callbacks:
                self._callbacks[name].best_weights = [arrays[f"{name}/{k}"] for k in range(count)]
        for name in stored.log_bytes:
            if name in self._callbacks:
                # Its file is open now.
                self._callbacks[name].append = self._before[name]["append"]
        self._metrics = [_value(variable) for variable in self.model.metrics_variables]
        self._total = self._saved_total = position["step"]
        self._step = stored.data.step
        epoch = self.params["epochs"] if stored.has_stopped else position["epoch"]
        is_done = epoch >= self.params["epochs"]
        if is_done:
            self._feed.pass_over()
        # Otherwise the data itself draws from them.
        is_at_epoch = self._feed.kind == "py_dataset" and not self._step
        if self._feed.kind in ("array", "dataset") or is_at_epoch or is_done:
            random_state.restore(self._loaded.state["random"])
        fits.begin_at(self.model, epoch)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Restore what Keras resets when training begins: metrics, callbacks, the history."""
        self._epoch = epoch
        if self._loaded is None:
            self._step = 0
            return
        stored, self._loaded = self._loaded.more, None
        # A new epoch begins with metrics of 0.
        if stored.data.step:
            for variable, value in zip(self.model.metrics_variables, self._metrics, strict=True):
                variable.assign(value)
        for callback in self._callbacks.values():
            fits.set_up_monitor(callback)
        _set_attributes(self._callbacks, stored.callbacks)
        self._put_back_history()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        assert self._feed is not None
        self._total += batch + 1 - self._step
        self._step = batch + 1
        self._feed.take_step(self._step)
        self._stop_if_asked()
        # The end of the epoch saves the same, and its logs.
        is_last = self._every_epoch and self._step == self.params.get("steps")
        if self._is_due() and not is_last:
            self._save()

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Keep the metrics of the epoch, which the validation resets."""
        if self._feed is not None:
            self._validation_metrics = [_value(v) for v in self.model.metrics_variables]

    def on_test_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Stop, if a signal came; the validation is done again."""
        if self._feed is not None and self._validation_metrics is not None:
            self._stop_if_asked(self._validation_metrics)

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._validation_metrics = None
        if self._feed is not None:
            self._feed.end_validation()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        assert self._feed is not None
        self._history["epochs"].append(epoch)
        for name, value in (logs or {}).items():
            plain = _plain(value)
            values = self._history["logs"].setdefault(name, [])
            # Values that are no numbers are left out.
            values.append(None if plain is _ABSENT else plain)
        self._feed.end_epoch()
        self._epoch, self._step = epoch + 1, 0
        self._stop_if_asked()
        if self._every_epoch or self._is_due():
            self._save()

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Wait until the last checkpoint is on disk."""
        if self._loaded is not None:
            # All epochs were done before.
            _set_attributes(self._callbacks, self._loaded.more.callbacks)
            self._put_back_history()
        self._wait()

    def _put_back_history(self) -> None:
        history: Any = self.model.history
        history.epoch = [*self._history["epochs"]]
        history.history = copy.deepcopy(self._history["logs"])

    def _is_due(self) -> bool:
        if self._every_steps and self._total - self._saved_total >= self._every_steps:
            return True
        waited = self._clock() - self._saved_at
        return self._every_seconds is not None and waited >= self._every_seconds

    def _save(self) -> None:
        assert self._feed is not None
        self._saved_at, self._saved_total = self._clock(), self._total
        self._wait()
        best: dict[str, list[np.ndarray]] = {}
        log_bytes: dict[str, int] = {}
        changed: dict[str, dict[str, Any]] = {}
        for name, item in self._callbacks.items():
            if isinstance(item, keras.callbacks.EarlyStopping) and item.best_weights:
                best[name] = item.best_weights
            is_logger = isinstance(item, keras.callbacks.CSVLogger) and others.writes()
            if is_logger and tf.io.gfile.exists(item.filename):
                log_bytes[name] = tf.io.gfile.stat(item.filename).length
            # What a program has configured, such as ``patience``, stays as the program says.
            changed[name] = {
                key: value
                for key, value in _plain_attributes(item).items()
                if self._before[name].get(key, _ABSENT) != value
            }
        stored = {
            "data": asdict(self._feed.position()),
            "callbacks": changed,
            "best_weights": {name: len(arrays) for name, arrays in best.items()},
            "log_bytes": log_bytes,
            # It is written while the fit goes on.
            "history": copy.deepcopy(self._history),
            "has_stopped": bool(self.model.stop_training),
        }
        self.checkpoint.write(
            Position(step=self._total, epoch=self._epoch, position=self._step),
            {"fit": stored},
            {f"{name}/{k}": a for name, arrays in best.items() for k, a in enumerate(arrays)},
        )

    def _stop_if_asked(self, metrics: list[np.ndarray] | None = None) -> None:
        """Save, and let a signal act that came; with values of metrics, where they are others."""
        if not others.stops(is_requested=self._termination.is_requested):
            return
        variables = self.model.metrics_variables
        now = [_value(variable) for variable in variables]
        for variable, value in zip(variables, metrics or now, strict=True):
            variable.assign(value)
        self._save()
        self._wait()
        self._termination.act()
        # A handler of the program lets it go on.
        for variable, value in zip(variables, now, strict=True):
            variable.assign(value)

    def _wait(self) -> None:
        try:
            self.checkpoint.wait()
        except CheckpointError as error:
            if self._on_failure == "raise" or error.code != "CKPT-004":
                raise
            warn(
                "CKPT-009",
                f"{error.what} Training goes on.",
                why=error.why,
                fix=error.fix,
                stacklevel=3,
            )


MakeCallback = Callable[[keras.Model, list[Any], Mapping[str, Any]], CheckpointCallback]
"""Function that returns the callback for a ``fit``, of its model, callbacks and arguments."""
_make_callback: MakeCallback | None = None


@contextlib.contextmanager
def added_to_fits(make: MakeCallback) -> Generator[None]:
    """Let every ``fit`` of this process have a callback for checkpoints; in the block."""
    global _make_callback
    _make_callback = make
    fits.follow_fits(_run_fit)
    try:
        yield
    finally:
        _make_callback = None


def _run_fit(
    model: keras.Model,
    callbacks: list[Any],
    proceed: Callable[..., Any],
    arguments: Mapping[str, Any],
) -> Any:
    if _make_callback is not None:
        callbacks = [*callbacks, _make_callback(model, callbacks, arguments)]
    found = [item for item in callbacks if isinstance(item, CheckpointCallback)]
    if not found:
        with fits.following(None):
            return proceed(callbacks)
    if len(found) > 1:
        raise CheckpointError(
            "CKPT-010",
            f"fit has {len(found)} callbacks for checkpoints.",
            why="A training is resumed from one folder.",
            fix="Leave one evener.CheckpointCallback in callbacks, and none with --checkpoint.",
        )
    return found[0].run_fit(model, callbacks, proceed, arguments)


def _value(variable: Any) -> np.ndarray:
    return np.array(keras.ops.convert_to_numpy(variable), copy=True)


def _check(name: str, value: Any) -> None:
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not value > 0 or (name == "every_steps" and not isinstance(value, int)):
        why = "It is a number above 0, and for steps a whole one, or None."
        raise wrong_number(name, value, why)
