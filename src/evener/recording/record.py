"""Record of a run: a thread beside it writes what the strategy has counted.

::

    steps of the run ──► counters and spans on the host ◄── thread, twice a second ──► files
    fit ──► losses ──────────────────────────────────────────────────────────────────► files

Nothing of ours is called between two steps, so the record is the same for ``fit``, for loops of
one's own and for scripts under `evener run`. Files are bounded, and each line is whole and on the
disk's way at once.
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import itertools
import json
import logging
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import keras
import tensorflow as tf

from evener import __version__
from evener._tf_private.fits import adding_callbacks
from evener.devices import inventory
from evener.errors import EngineError, EvenerWarning, RunError
from evener.feedback import Rebalanced
from evener.recording.measured import Measured, count_work, shares_of_devices, step_line, trace_line
from evener.recording.reading import (
    EVENTS,
    FULL,
    LOSSES,
    METRICS,
    MOST_BYTES,
    MOST_TEXT,
    RECORD,
    STEPS,
    STOPPED,
    VERSION,
    without_secrets,
)
from evener.strategy import Strategy
from evener.strategy.shares import RecordedStep
from evener.workers.process import group_of_process

_TICK_SECONDS = 0.5
_METRICS_PACE = (1.0, 250)
_LOSSES_PACE = (1.0, 250)
_STEPS_PACE = (1.0, 25)


def record(folder: str | os.PathLike[str], strategy: Strategy) -> Recording:
    """Record the steps of a strategy in a folder, for `evener report`.

    Use it as a context manager around the training; ``fit`` in the block is followed by itself.
    Begin before the first step: steps that were traced before are not counted.

    Args:
        folder: Folder, made if it is not there. It may not hold a record already.
        strategy: Strategy that trains.

    Raises:
        RunError: RUN-100 if the folder holds a record, RUN-101 if it cannot be written, RUN-102 if
            the strategy has run steps before.

    Example:
        >>> import evener, keras, numpy as np, tempfile
        >>> strategy = evener.Strategy(devices=["cpu:0", "cpu:1"])
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        >>> folder = tempfile.mkdtemp()
        >>> with evener.record(folder, strategy):
        ...     _ = model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
    """
    return Recording(Path(folder), strategy, command=sys.argv)


class Recording:
    """Record that is being written; see `evener.record`.

    Args:
        folder: Folder of the record.
        strategy: Strategy that trains.
        command: Command line of the run.
        notes: Function that returns the notes about the script so far.
        diagnosis: Findings of the doctor on the program; None if it was not examined.
        clock: Function that returns the time in seconds.
    """

    def __init__(
        self,
        folder: Path,
        strategy: Strategy,
        *,
        command: Sequence[str],
        notes: Callable[[], Sequence[str]] = tuple,
        diagnosis: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        controller = strategy.share_controller
        if not controller.keeps_spans and strategy.has_run:
            raise RunError(
                "RUN-102",
                "The strategy has run steps before it is recorded.",
                why="Steps that are traced before do not count their work.",
                fix="Call evener.record before the first step, such as fit or evaluate.",
            )
        self._folder = RecordFolder(folder)
        self._strategy = strategy
        self._process = os.getpid()
        self._clock, self._begin = clock, clock()
        count_work(strategy)
        controller.keep_spans()
        self._folder.write_record(
            {
                "version": VERSION,
                "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "command": without_secrets(command),
                "versions": {
                    "evener": __version__,
                    "tensorflow": tf.__version__,
                    "keras": keras.__version__,
                    "python": sys.version.split()[0],
                },
                "devices": list(shares_of_devices(strategy)),
                "plan": json.loads(strategy.plan.to_json()),
                "inventory": inventory().to_dict(),
                "diagnosis": diagnosis,
            }
        )
        self._measured = Measured(strategy)
        # Lists that only grow: each new entry is an event.
        self._growing: dict[str, Callable[[], Sequence[object]]] = {
            "note": notes,
            "gathered": lambda: strategy.report().gathered,
            "check": lambda: strategy.spot_checks,
            "verified": lambda: strategy.verifications,
        }
        self._seen: set[tuple[str, str]] = set()
        self._metrics_pace, self._steps_pace = Pace(*_METRICS_PACE), Pace(*_STEPS_PACE)
        self._last_step: RecordedStep | None = None
        # By controller and trace: a trial of plans has several controllers.
        self._traces: dict[tuple[int, int], int] = {}
        self._estimated = 0
        self._stop = threading.Event()
        self._stack = contextlib.ExitStack()
        self._thread = threading.Thread(target=self._run, name="evener record", daemon=True)

    @property
    def path(self) -> Path:
        return self._folder.path

    def log(self, values: Mapping[str, Any], *, step: int | None = None) -> None:
        """Add losses or metrics of a loop of one's own.

        Args:
            values: Single numbers by name.
            step: Number of the step, if it is known.
        """
        known = {} if step is None else {"step": step}
        line = {"time": self._now(), **known, "values": written_values(values)}
        self._folder.add(LOSSES, line)

    def __enter__(self) -> Recording:
        self._stack.enter_context(watching(self._emit))
        self._stack.enter_context(
            adding_callbacks(lambda: Losses(self._folder, self._now, Pace(*_LOSSES_PACE)))
        )
        self._emit({"event": "begin", "text": "the record begins"})
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the record, with the error that ended the run, if one did."""
        if os.getpid() != self._process:
            return
        self._stop.set()
        self._thread.join()
        self._sample(is_last=True)
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self._emit({"event": "end", "text": "the run ended"})
        elif isinstance(error, KeyboardInterrupt):
            self._emit({"event": "end", "text": STOPPED})
        else:
            text = str(error).partition("\n")[0]
            self._emit({"event": "failed", "text": f"{type(error).__name__}: {text}"})
        self._stack.close()
        self._folder.close()
        if self._folder.problem:
            print(
                f"evener: the record in {self.path} is not complete: {self._folder.problem}",
                file=sys.stderr,
            )

    def _now(self) -> float:
        return round(self._clock() - self._begin, 3)

    def _emit(self, event: Mapping[str, Any]) -> None:
        text = str(event["text"])[:MOST_TEXT]
        self._folder.add(EVENTS, {"time": self._now(), **event, "text": text})

    def _run(self) -> None:
        while not self._stop.wait(_TICK_SECONDS):
            try:
                self._sample()
            except Exception as error:
                # The record never ends the run; what is missing is told in it.
                self._emit({"event": "not recorded", "text": f"{type(error).__name__}: {error}"})
                return

    def _sample(self, *, is_last: bool = False) -> None:
        for kind, entries in self._growing.items():
            for entry in entries():
                text = str(entry)[:MOST_TEXT]
                if (kind, text) not in self._seen:
                    self._seen.add((kind, text))
                    self._emit({"event": kind, "text": text})
        now = self._now()
        if self._metrics_pace.is_due(now) or is_last:
            self._folder.add(METRICS, self._measured.line(now))
            self._estimate_memory()
        controller = self._strategy.share_controller
        step = controller.last_step()
        if step is None or step == self._last_step:
            return
        if self._steps_pace.is_due(now) or is_last:
            self._last_step = step
            key = id(controller), step.trace
            if key not in self._traces:
                self._traces[key] = len(self._traces)
                self._folder.add(STEPS, trace_line(step, self._traces[key]))
            self._folder.add(STEPS, step_line(step, self._traces[key], now))

    def _estimate_memory(self) -> None:
        """Add the predicted peak memory of the largest batch so far."""
        records = self._strategy.share_controller.step_records()
        batch = max((sum(step.samples) for step in records), default=0)
        if batch <= self._estimated:
            return
        self._estimated = batch
        with contextlib.suppress(EngineError):
            needs = self._strategy.memory_estimate(batch)
            self._emit(
                {
                    "event": "memory",
                    "text": f"predicted peak memory for {batch} samples",
                    "batch_size": batch,
                    "bytes": {name: need.total for name, need in needs.items()},
                }
            )


class RecordFolder:
    """Folder that a run writes. A full disk ends the record, not the run."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.problem = ""
        self._lock = threading.Lock()
        self._files: dict[str, IO[str]] = {}
        self._sizes: dict[str, int] = {}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if (self.path / RECORD).exists():
                raise _holds_a_record(path)
            for name in (EVENTS, METRICS, LOSSES, STEPS):
                # Exclusive: another run may have come first.
                self._files[name] = (self.path / name).open("x", encoding="utf-8")
                self._sizes[name] = 0
        except OSError as error:
            self.close()
            if isinstance(error, FileExistsError) and self.path.is_dir():
                raise _holds_a_record(path) from None
            raise _cannot_be_written(path, error) from error

    def write_record(self, fields: Mapping[str, Any]) -> None:
        beside = self.path / f"{RECORD}.part"
        try:
            beside.write_text(json.dumps(fields, indent=1), encoding="utf-8")
            beside.replace(self.path / RECORD)
        except OSError as error:
            raise _cannot_be_written(self.path, error) from error

    def add(self, name: str, line: Mapping[str, Any]) -> None:
        with self._lock:
            file = self._files.get(name)
            if file is None or self.problem:
                return
            text = json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n"
            is_full = self._sizes[name] + len(text) > MOST_BYTES[name]
            try:
                file.write(json.dumps(FULL) + "\n" if is_full else text)
                file.flush()
            except OSError as error:
                self.problem = error.strerror or str(error)
                return
            self._sizes[name] += len(text)
            if is_full:
                self._files.pop(name).close()

    def close(self) -> None:
        with self._lock:
            while self._files:
                _, file = self._files.popitem()
                try:
                    file.close()
                except OSError as error:
                    self.problem = self.problem or error.strerror or str(error)


def _holds_a_record(path: Path) -> RunError:
    return RunError(
        "RUN-100",
        f"{path} holds the record of a run already.",
        why="A record is never overwritten.",
        fix="Give another folder, or remove this one.",
    )


def _cannot_be_written(path: Path, error: OSError) -> RunError:
    return RunError(
        "RUN-101",
        f"The record of the run cannot be written to {path}.",
        why=f"{error.strerror or error}.",
        fix="Give a folder that this user can write to, on a disk with space.",
    )


class Pace:
    """Pace of samples: dense at the start, and ever thinner, so that a record stays small.

    The interval doubles after so many samples. A run of a week has 20 doublings at most.

    >>> pace = Pace(1.0, 2)
    >>> [now for now in range(12) if pace.is_due(now)]
    [0, 1, 2, 4, 6, 10]
    """

    def __init__(self, seconds: float, num_samples: int) -> None:
        self._interval = seconds
        self._num_samples = num_samples
        self._taken = 0
        self._next = float("-inf")

    def is_due(self, now: float) -> bool:
        """Return whether a sample is due, and count it as taken if it is."""
        if now < self._next:
            return False
        self._taken += 1
        self._next = now + self._interval
        if self._taken >= self._num_samples:
            self._taken = 0
            self._interval *= 2
        return True


class Losses(keras.callbacks.Callback):
    def __init__(self, folder: RecordFolder, clock: Callable[[], float], pace: Pace) -> None:
        super().__init__()
        self._folder, self._clock, self._pace = folder, clock, pace
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._epoch = epoch

    # Not on_train_batch_end: before it, Keras reads the logs of every batch.
    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        if batch and self._pace.is_due(self._clock()):
            self._write(self.model.get_metrics_result(), {"batch": batch})

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._write(logs or {}, {})

    def _write(self, logs: Mapping[str, Any], batch: Mapping[str, int]) -> None:
        line = {"time": self._clock(), "epoch": self._epoch, "values": written_values(logs)}
        self._folder.add(LOSSES, {**line, **batch})


class EpochLogs(keras.callbacks.Callback):
    """Callback that writes the logs of each epoch and the work of devices, for TensorBoard and CSV.

    The logs of the program stay as they are. If they cannot be written, such as on a full disk, one
    line says so, and the training goes on without them.
    """

    def __init__(self, strategy: Strategy, folder: Path, problems: list[str]) -> None:
        super().__init__()
        self._strategy, self._folder, self._problems = strategy, folder, problems
        self._rows: list[dict[str, float]] = []

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        self._write(self._begin)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._write(lambda: self._add(epoch, logs or {}))

    def _write(self, write: Callable[[], None]) -> None:
        if self._problems:
            return
        try:
            write()
        except (OSError, tf.errors.OpError) as error:
            self._problems.append(getattr(error, "strerror", None) or str(error))
            print(
                f"evener: --log-dir: nothing more is written to {self._folder}, the training goes "
                f"on: {self._problems[0]}",
                file=sys.stderr,
            )

    def _begin(self) -> None:
        numbers = itertools.count(1)
        self._fit = next(f for n in numbers if not (f := self._folder / f"fit_{n}").exists())
        # Files of events are written by the first worker alone.
        self._fit.mkdir(parents=True)
        self._writer = tf.summary.create_file_writer(str(self._fit))
        self._measured = Measured(self._strategy)
        self._measured.line(time.monotonic())
        self._rows = []

    def _add(self, epoch: int, logs: Mapping[str, Any]) -> None:
        line = self._measured.line(time.monotonic())
        values = {**scalars(logs), "samples_per_second": line["samples_per_second"]}
        for number, name in enumerate(shares_of_devices(self._strategy)):
            figures = {"share": "share", "busy": "busy", "memory_bytes": "memory"}
            values |= {f"{name}/{key}": line[at][number] for key, at in figures.items()}
        values = {name: value for name, value in values.items() if value is not None}
        with self._writer.as_default(step=epoch):
            for name, value in values.items():
                tf.summary.scalar(name, value)
        self._writer.flush()
        self._rows.append({"epoch": epoch + 1, **values})
        # Again as a whole: some epochs alone have validation.
        columns = dict.fromkeys(name for row in self._rows for name in row)
        with (self._fit / "epochs.csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, list(columns))
            table.writeheader()
            table.writerows(self._rows)


@contextlib.contextmanager
def logging_epochs(strategy: Strategy, folder: Path) -> Iterator[None]:
    """Write the epochs of every ``fit`` in the block into a folder; of a worker, into its own."""
    group = group_of_process()
    if group is not None:
        folder = folder / f"worker-{group.index}"
    problems: list[str] = []
    count_work(strategy)
    before = len(list(folder.glob("fit_*/epochs.csv")))
    try:
        with adding_callbacks(lambda: EpochLogs(strategy, folder, problems)):
            yield
    finally:
        if not problems and len(list(folder.glob("fit_*/epochs.csv"))) == before:
            print(
                f"evener: --log-dir: nothing new in {folder}, since no epoch of a Keras fit ended",
                file=sys.stderr,
            )


def written_values(logs: Mapping[str, Any]) -> dict[str, float | str]:
    """Return the single numbers of logs for JSON, which has none that are not finite: as text."""
    return {
        name: float(f"{value:.6g}") if math.isfinite(value) else str(value)
        for name, value in scalars(logs).items()
    }


def scalars(logs: Mapping[str, Any]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, value in logs.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            # A log of several numbers, such as one F1 score for each class.
            continue
    return numbers


@contextlib.contextmanager
def watching(emit: Callable[[Mapping[str, Any]], None]) -> Iterator[None]:
    logger = logging.getLogger("evener")
    level, shown_from = logger.level, logger.getEffectiveLevel()

    def forward(message: logging.LogRecord) -> bool:
        if message.levelno >= logging.INFO:
            changes = [each for each in message.args or () if isinstance(each, Rebalanced)]
            if changes:
                change = changes[0]
                steps = {"step": change.step, "before": change.before, "after": change.after}
                emit({"event": "shares", "text": str(change), **steps})
            else:
                emit({"event": "log", "text": message.getMessage()})
        return message.levelno >= shown_from

    show = warnings.showwarning

    def show_warning(message: Any, category: Any, *args: Any, **kwargs: Any) -> None:
        if issubclass(category, EvenerWarning):
            emit({"event": "warning", "text": str(message)})
        show(message, category, *args, **kwargs)

    logger.addFilter(forward)
    logger.setLevel(min(shown_from, logging.INFO))
    warnings.showwarning = show_warning
    try:
        yield
    finally:
        logger.removeFilter(forward)
        logger.setLevel(level)
        # Another one may have been put on top meanwhile.
        if warnings.showwarning is show_warning:
            warnings.showwarning = show
