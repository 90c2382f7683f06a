"""`CheckpointCallback`: Keras's ``fit`` goes on where it was, with the very next batch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import keras
import numpy as np

from evener._tf_private import fits
from evener.checkpoint import others, random_state
from evener.checkpoint.checkpoint import Checkpoint, Position, wrong_number
from evener.checkpoint.contents import DamagedError, Loaded, check, is_count, is_number
from evener.checkpoint.fit_position import POSITION, FitFeed, as_json, from_json
from evener.checkpoint.fit_state import (
    EpochLogs,
    best_weights,
    changed_attributes,
    log_lengths,
    name_callbacks,
    plain_attributes,
    resume_logs,
    set_attributes,
)
from evener.checkpoint.termination import Termination
from evener.errors import CheckpointError, warn

_FIT = {
    "data": POSITION,
    "callbacks": {str: {str: is_number}},
    "best_weights": {str: is_count},
    "log_bytes": {str: is_count},
    "history": {"epochs": [is_count], "logs": {str: [is_number]}},
    "has_stopped": lambda value: isinstance(value, bool),
}


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
        self._every_epoch = every_epoch
        self._on_failure = on_failure
        self._clock = clock
        self._feed: FitFeed | None = None
        self._loaded: Loaded | None = None
        self._logs = EpochLogs()
        fits.follow_fits(_run_fit)

    def run_fit(
        self, model: keras.Model, callbacks: list[Any], proceed: Callable[[list[Any]], Any]
    ) -> Any:
        """Run a ``fit`` of Keras: follow its data and signals, and resume it."""
        self.checkpoint = Checkpoint(
            self.checkpoint.path, keep=self.checkpoint.keep, model=model, **self._trackables
        )
        before_self = [item for item in callbacks if item is not self]
        self._callbacks = name_callbacks(before_self)
        self._before = {name: plain_attributes(item) for name, item in self._callbacks.items()}
        random_before = random_state.read()
        self._termination = Termination()
        try:
            self._loaded = self.checkpoint.load(check_fit, locks=True)
            stored = None if self._loaded is None else self._loaded.state["fit"]
            resumed = None if stored is None else from_json(stored["data"])
            if stored is not None and resumed is not None:
                random_state.restore(resumed.random_at_fit)
                resume_logs(self._callbacks, stored["log_bytes"], cuts=others.writes())
            self._feed = FitFeed(resumed, random_state.read())
            self._logs = EpochLogs(None if stored is None else stored["history"])
            with fits.following(self._feed), self._termination, fits.beginning_at(model):
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
            raise _not_followed()
        self._epoch = self._step = self._total = 0
        self._saved_at, self._saved_total = self._clock(), 0
        self._validation_metrics: list[np.ndarray] | None = None
        fits.build_from_data(self.model, self._feed.iterator)
        self._feed.begin()
        if self._feed.kind == "dataset" and fits.shuffles_without_seed(self._feed.iterator):
            _warn_of_shuffle()
        if self._loaded is None:
            return
        self.checkpoint.assign(self._loaded)
        position, stored = self._loaded.state["position"], self._loaded.state["fit"]
        arrays = self._loaded.arrays
        for name, count in stored["best_weights"].items():
            if name in self._callbacks:
                self._callbacks[name].best_weights = [arrays[f"{name}/{k}"] for k in range(count)]
        for name in stored["log_bytes"]:
            if name in self._callbacks:
                # Its file is open now.
                self._callbacks[name].append = self._before[name]["append"]
        self._metrics = [_value(variable) for variable in self.model.metrics_variables]
        self._total = self._saved_total = position["step"]
        self._step = stored["data"]["step"]
        # Otherwise the data itself draws from them.
        is_at_epoch = self._feed.kind == "py_dataset" and not self._step
        if self._feed.kind in ("array", "dataset") or is_at_epoch:
            random_state.restore(self._loaded.state["random"])
        has_stopped = stored["has_stopped"]
        fits.begin_at(self.model, self.params["epochs"] if has_stopped else position["epoch"])

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Restore what Keras resets when training begins: metrics, callbacks, the history."""
        self._epoch = epoch
        if self._loaded is None:
            self._step = 0
            return
        stored, self._loaded = self._loaded.state["fit"], None
        # A new epoch begins with metrics of 0.
        if stored["data"]["step"]:
            for variable, value in zip(self.model.metrics_variables, self._metrics, strict=True):
                variable.assign(value)
        for callback in self._callbacks.values():
            fits.set_up_monitor(callback)
        set_attributes(self._callbacks, stored["callbacks"])
        self._logs.put_into(self.model.history)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save, if it is time to."""
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
        """Forget the metrics of the epoch."""
        self._validation_metrics = None

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save, if it is to."""
        assert self._feed is not None
        self._logs.add(epoch, logs or {})
        self._feed.end_epoch()
        self._epoch, self._step = epoch + 1, 0
        self._stop_if_asked()
        if self._every_epoch or self._is_due():
            self._save()

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Wait until the last checkpoint is on disk."""
        if self._loaded is not None:
            # All epochs were done before.
            set_attributes(self._callbacks, self._loaded.state["fit"]["callbacks"])
            self._logs.put_into(self.model.history)
        self._wait()

    def _is_due(self) -> bool:
        if self._every_steps and self._total - self._saved_total >= self._every_steps:
            return True
        waited = self._clock() - self._saved_at
        return self._every_seconds is not None and waited >= self._every_seconds

    def _save(self) -> None:
        assert self._feed is not None
        self._saved_at, self._saved_total = self._clock(), self._total
        self._wait()
        best = best_weights(self._callbacks)
        stored = {
            "data": as_json(self._feed.position()),
            "callbacks": changed_attributes(self._callbacks, self._before),
            "best_weights": {name: len(arrays) for name, arrays in best.items()},
            "log_bytes": log_lengths(self._callbacks) if others.writes() else {},
            "history": self._logs.as_json(),
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


def _run_fit(model: keras.Model, callbacks: list[Any], proceed: Callable[..., Any]) -> Any:
    found = [item for item in callbacks if isinstance(item, CheckpointCallback)]
    if not found:
        with fits.following(None):
            return proceed(callbacks)
    if len(found) > 1:
        raise CheckpointError(
            "CKPT-010",
            f"fit has {len(found)} callbacks for checkpoints.",
            why="A training is resumed from one folder.",
            fix="Leave one evener.CheckpointCallback in callbacks.",
        )
    return found[0].run_fit(model, callbacks, proceed)


def _value(variable: Any) -> np.ndarray:
    return np.array(keras.ops.convert_to_numpy(variable), copy=True)


def _check(name: str, value: Any) -> None:
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not value > 0 or (name == "every_steps" and not isinstance(value, int)):
        why = "It is a number above 0, and for steps a whole one, or None."
        raise wrong_number(name, value, why)


def check_fit(state: Mapping[str, Any]) -> None:
    """Check what a checkpoint has of a ``fit``; see `Checkpoint.load`."""
    check(state, {"fit": _FIT}, "state")
    stored = state["fit"]
    paths = [entry["path"] for entry in state["arrays"]]
    counts, data = stored["best_weights"], stored["data"]
    known = [f"{n}/{k}" for n, count in counts.items() for k in range(min(count, len(paths) + 1))]
    if {*known} ^ {*paths} or not data["iterator"] or data["num_drawn"] < data["step"]:
        raise DamagedError("state.json: the entries of fit do not belong together")


def _warn_of_shuffle() -> None:
    warn(
        "CKPT-012",
        "A resumed run will see the batches in another order.",
        why="The tf.data pipeline shuffles without a seed, so each process draws its own.",
        fix="Use dataset.shuffle(size, seed=1), or call keras.utils.set_random_seed(1) first.",
        stacklevel=2,
    )


def _not_followed() -> CheckpointError:
    return CheckpointError(
        "CKPT-008",
        "The position in the data cannot be followed.",
        why="The callback sees the data of Keras's own fit, and this training does not call it.",
        fix="Use model.fit(..., callbacks=[callback]), or evener.Checkpoint in a loop of your own.",
    )
