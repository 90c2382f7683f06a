"""Record of a run: a thread beside it writes what the strategy has counted.

::

    steps of the run ──► counters and spans on the host ◄── thread, twice a second ──► files
    fit ──► losses ──────────────────────────────────────────────────────────────────► files

Nothing of ours is called between two steps, so the record is the same for ``fit``, for loops of
one's own and for scripts under `evener run`.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from evener._tf_private.fits import adding_callbacks
from evener.devices import inventory
from evener.errors import EngineError, RunError
from evener.recording import format as names
from evener.recording.folder import RecordFolder
from evener.recording.losses import Losses, written_values
from evener.recording.measured import (
    Measured,
    count_work,
    shares_of_devices,
    step_line,
    trace_line,
)
from evener.recording.pace import Pace
from evener.recording.watch import Growing, watching
from evener.strategy import Strategy
from evener.strategy.step_spans import RecordedStep

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
        description = {**_description(strategy, command), "diagnosis": diagnosis}
        self._folder.write_record(description)
        self._measured = Measured(strategy)
        self._growing = Growing(strategy, notes)
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
        """Folder of the record."""
        return self._folder.path

    def log(self, values: Mapping[str, Any], *, step: int | None = None) -> None:
        """Add losses or metrics of a loop of one's own.

        Args:
            values: Single numbers by name.
            step: Number of the step, if it is known.
        """
        where = {} if step is None else {"step": step}
        line = {"time": self._now(), **where, "values": written_values(values)}
        self._folder.add(names.LOSSES, line)

    def __enter__(self) -> Recording:
        """Begin to record."""
        self._stack.enter_context(watching(self._emit))
        self._stack.enter_context(adding_callbacks(self._losses))
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
        else:
            text = str(error).partition("\n")[0][: names.MOST_TEXT]
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

    def _losses(self) -> Losses:
        return Losses(
            lambda line: self._folder.add(names.LOSSES, line), self._now, Pace(*_LOSSES_PACE)
        )

    def _emit(self, event: Mapping[str, Any]) -> None:
        text = str(event["text"])[: names.MOST_TEXT]
        self._folder.add(names.EVENTS, {"time": self._now(), **event, "text": text})

    def _run(self) -> None:
        while not self._stop.wait(_TICK_SECONDS):
            try:
                self._sample()
            except Exception as error:
                # The record never ends the run; what is missing is told in it.
                self._emit({"event": "not recorded", "text": f"{type(error).__name__}: {error}"})
                return

    def _sample(self, *, is_last: bool = False) -> None:
        for event in self._growing.events():
            self._emit(event)
        now = self._now()
        if self._metrics_pace.is_due(now) or is_last:
            self._folder.add(names.METRICS, self._measured.line(now))
            self._estimate_memory()
        step = self._strategy.share_controller.last_step()
        if step is not None and step != self._last_step:
            if self._steps_pace.is_due(now) or is_last:
                self._last_step = step
                self._add_step(step, now)

    def _add_step(self, step: RecordedStep, now: float) -> None:
        key = id(self._strategy.share_controller), step.trace
        if key not in self._traces:
            self._traces[key] = len(self._traces)
            self._folder.add(names.STEPS, trace_line(step, self._traces[key]))
        self._folder.add(names.STEPS, step_line(step, self._traces[key], now))

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


def _description(strategy: Strategy, command: Sequence[str]) -> dict[str, Any]:
    import keras
    import tensorflow as tf

    from evener import __version__

    return {
        "version": names.VERSION,
        "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": names.without_secrets(command),
        "versions": {
            "evener": __version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "python": sys.version.split()[0],
        },
        "devices": list(shares_of_devices(strategy)),
        "plan": json.loads(strategy.plan.to_json()),
        "inventory": inventory().to_dict(),
    }
