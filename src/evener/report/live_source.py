"""State of the live view, made of what a strategy has measured and of Keras's ``fit``.

Nothing is measured for the view: the clocks are those by which shares are balanced, and those of
records of runs.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from evener._tf_private.fits import adding_callbacks
from evener.devices import inventory
from evener.devices.names import without_worker
from evener.planner.run_times import StepRecord
from evener.recording.measured import (
    count_work,
    gpu_memory,
    shares_of_devices,
    step_line,
    trace_line,
)
from evener.recording.reading import activities, time_of
from evener.recording.record import scalars, watching
from evener.report.live import (
    FOLDER,
    IN_PLACE,
    FileScreen,
    LiveDevice,
    LiveState,
    LiveView,
    Screen,
    losses_text,
    screen_of_process,
)
from evener.strategy import Strategy
from evener.strategy.shares import RecordedStep
from evener.workers.process import group_of_process

_LOSS_SECONDS = 1.0
_RECENT_SECONDS = 5.0
_NUM_STEPS = 8
_MOST_SPANS = 1000


class FitProgress(keras.callbacks.Callback):
    """Epoch, step and losses of a ``fit``, for a thread that reads them."""

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        begin: Callable[[FitProgress], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._say = say
        self._begin = begin
        self._clock = clock
        self._read_at = float("-inf")
        self._first: tuple[float, int] | None = None
        self.epoch = self.step = self._steps_before = 0
        self.num_epochs = 1
        self.num_steps: int | None = None
        self.losses: dict[str, float] = {}

    def seconds_left(self) -> float | None:
        """Return the seconds to the end of the last epoch; None if unknown."""
        if self._first is None or self.num_steps is None:
            return None
        began, first = self._first
        done = self._steps_before + self.step - first
        if done <= 0:
            return None
        steps_left = (self.num_epochs - self.epoch) * self.num_steps - self.step
        return max(0, steps_left) * (self._clock() - began) / done

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        self.num_epochs = int(self.params.get("epochs") or 1)
        self.num_steps = self.params.get("steps")
        # Not when it is made: evaluation has the same callbacks.
        self._begin(self)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self.epoch, self.step = epoch, 0
        self._began = self._clock()

    # Not on_train_batch_end: before it, Keras reads the logs of every batch.
    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self.step = batch
        if batch == 0:
            return
        now = self._clock()
        if self._first is None:
            # The first step traces.
            self._first = now, self._steps_before + batch
        if now - self._read_at >= _LOSS_SECONDS:
            self._read_at = now
            self.losses = scalars(self.model.get_metrics_result())

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Write a line about the epoch, which stays, unless Keras writes the same."""
        steps_of_call = getattr(self.model, "steps_per_execution", 1) or 1
        num_steps = self.num_steps or self.step + steps_of_call
        self.num_steps = num_steps
        self._steps_before += num_steps
        self.epoch, self.step = epoch + 1, 0
        self.losses = scalars(logs or {})
        if self.params.get("verbose") != 2:
            seconds = self._clock() - self._began
            line = f"epoch {epoch + 1}/{self.num_epochs}  {seconds:.1f} s"
            self._say(f"{line}  {losses_text(self.losses)}")


class StrategySource:
    """Reads the state of a strategy's training; for one thread."""

    def __init__(self, strategy: Strategy, *, worker: int | None = None) -> None:
        self._strategy = strategy
        self._worker = worker
        self._limits = {d.name: d.memory_total_bytes for d in inventory().devices}
        self._waits: deque[Mapping[str, tuple[Mapping[str, float], float]]] = deque(
            maxlen=_NUM_STEPS
        )
        self._spanned: Collection[str] = ()
        self._last_step: RecordedStep | None = None
        count_work(strategy)
        strategy.share_controller.keep_spans()

    def state(self, fit: FitProgress | None) -> LiveState:
        rate, devices = self.measured()
        if fit is None:
            step = 0 if self._last_step is None else self._last_step.number + 1
            return LiveState(step=step, samples_per_second=rate, devices=devices)
        has_ended = fit.epoch >= fit.num_epochs
        return LiveState(
            epoch=fit.num_epochs if has_ended else fit.epoch + 1,
            num_epochs=fit.num_epochs,
            step=(fit.num_steps or 0) if has_ended else fit.step,
            num_steps=fit.num_steps,
            samples_per_second=rate,
            seconds_left=fit.seconds_left(),
            losses=fit.losses,
            devices=devices,
        )

    def measured(self) -> tuple[float | None, tuple[LiveDevice, ...]]:
        """Return the samples per second of all devices, and what each of this process does."""
        controller = self._strategy.share_controller
        records = recent(controller.step_records())
        step = controller.last_step()
        if step is not None and step != self._last_step:
            self._last_step = step
            # A pipeline of many micro-batches has thousands, which would hold others up.
            if len(step.spans) <= _MOST_SPANS:
                rows = activities(trace_line(step, 0)["spans"], step_line(step, 0, 0.0))
                length = max(end for _, end in step.times) - min(begin for begin, _ in step.times)
                self._waits.append(
                    {name: (time_of(row, length).wait, length) for name, row in rows.items()}
                )
                self._spanned = self._waits[-1].keys()
        rate, busy = None, {}
        shares = shares_of_devices(self._strategy)
        if len(records) > 1:
            seconds = max(records[-1].began - records[0].began, 1e-9)
            rate = sum(sum(record.samples) for record in records[:-1]) / seconds
            computed = zip(*(record.busy_seconds for record in records[:-1]), strict=True)
            # In the order in which `count_work` names them. TensorFlow's names are no keys: devices
            # of other workers have the same ones.
            busy = {
                name: min(1.0, sum(times) / seconds)
                for name, times in zip(shares, computed, strict=False)
            }
        # The other workers have the numbers of their own devices.
        return rate, tuple(
            self._device(name, share, busy.get(name))
            for name, share in shares.items()
            if self._strategy.name_in_plan(without_worker(name)) == name
        )

    def _device(self, name: str, share: float, busy: float | None) -> LiveDevice:
        own = without_worker(name)
        memory = gpu_memory(own)
        key = own if own in self._spanned else name
        waits: dict[str, float] = {}
        length = 0.0
        for step in self._waits:
            by_device, seconds = step.get(key, ({}, 0.0))
            length += seconds
            for other, waited in by_device.items():
                waits[other] = waits.get(other, 0.0) + waited
        return LiveDevice(
            name=own,
            share=share,
            busy=busy,
            waits=sum(waits.values()) / length if length > 0 else None,
            waits_for=max(waits, key=waits.__getitem__, default="") if length > 0 else "",
            memory_bytes=None if memory is None else memory.current_bytes,
            memory_limit=self._limits.get(own),
            worker=self._worker,
        )


def source_of(strategy: Strategy | None) -> StrategySource | None:
    """Return the source of a strategy; None if there is none, or it cannot begin to measure."""
    if strategy is None:
        return None
    controller = strategy.share_controller
    is_measured = controller.counts and controller.keeps_spans
    return StrategySource(strategy) if is_measured or not strategy.has_run else None


def recent(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Return the last steps, of a few seconds, at least two where there are."""
    if not records:
        return []
    since = records[-1].began - _RECENT_SECONDS
    last = [record for record in records if record.began >= since]
    return last if len(last) > 1 else list(records[-2:])


@contextlib.contextmanager
def live_run(strategy: Any, environ: Mapping[str, str]) -> Iterator[None]:
    """Show the training of a strategy in the block, where ``fit`` is followed by itself."""
    group = group_of_process()
    worker = None if group is None else group.index
    if worker is not None and FOLDER in environ:
        in_place = bool(environ.get(IN_PLACE))
        screen: Screen = FileScreen(Path(environ[FOLDER]), worker, replaces_bar=in_place)
    else:
        screen = screen_of_process(environ)
    source = StrategySource(strategy, worker=worker)
    fits: list[FitProgress] = []

    def begin(fit: FitProgress) -> None:
        fits[:] = [fit]

    def say_event(event: Mapping[str, Any]) -> None:
        # Notes and warnings are printed anyway.
        if event["event"] in ("shares", "log"):
            screen.say(f"evener: {event['text']}")

    with (
        watching(say_event),
        adding_callbacks(
            lambda: FitProgress(screen.say, begin=begin), replaces_bar=lambda: screen.replaces_bar
        ),
        LiveView(screen, lambda: source.state(fits[0] if fits else None)),
    ):
        yield
