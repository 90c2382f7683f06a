"""Progress of a training: epoch, step and losses of a ``fit``, and the work of each device.

::

    fit ──► FitProgress ─┐
    strategy ────────────┴─► StrategySource ──► LiveState ──► live view, `Progress`

Nothing is measured for it: the clocks are those by which shares are balanced, and those of
records of runs. The exact number of samples of an epoch is the weight with which Keras averages
the loss.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
from rich.console import Console
from rich.text import Text

from evener._tf_private.fits import adding_callbacks
from evener._tf_private.models import model_strategy
from evener.devices import inventory
from evener.devices.names import device_name, without_worker
from evener.plan import split_batch
from evener.recording.measured import (
    CountedWork,
    DeviceWork,
    Owned,
    count_work,
    gpu_memory,
    is_own_device,
    owned_by_device,
    shares_of_devices,
    step_line,
    trace_line,
    work_of_devices,
)
from evener.recording.reading import activities, time_of
from evener.recording.record import scalars, watching
from evener.report.comparison import DEVICE_LOGS
from evener.report.live import (
    FOLDER,
    IN_PLACE,
    FileScreen,
    LiveDevice,
    LiveState,
    LiveView,
    Screen,
    epoch_line,
    is_shown,
    losses_text,
    screen_of,
    screen_of_process,
)
from evener.strategy import Strategy
from evener.strategy.shares import RecordedStep
from evener.workers.process import group_of_process

_LOSS_SECONDS = 1.0
_RECENT_SECONDS = 5.0
_NUM_STEPS = _NUM_MARKS = 8
_MOST_SPANS = 1000


class FitProgress(keras.callbacks.Callback):
    """Epoch, step, losses and time left of a ``fit``.

    Losses and metrics are read only when they are shown, so no step waits for them.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._begin_fit()

    def _begin_fit(self) -> None:
        self.epoch = self.step = self._steps_before = 0
        self.num_epochs = 1
        self.num_steps: int | None = None
        self.losses: dict[str, float] = {}
        self.is_training = False
        # Time and steps behind the first step, most of whose time is tracing.
        self._first: tuple[float, int] | None = None

    def state(
        self, devices: tuple[LiveDevice, ...], rate: float | None, *, title: str = ""
    ) -> LiveState:
        return LiveState(
            title=title,
            epoch=self.epoch + 1,
            num_epochs=self.num_epochs,
            step=self.step,
            num_steps=self.num_steps,
            samples_per_second=rate,
            seconds_left=self._seconds_left(),
            losses=self.losses,
            devices=devices,
        )

    def _seconds_left(self) -> float | None:
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
        self._begin_fit()
        self.num_epochs = int(self.params.get("epochs") or 1)
        self.num_steps = self.params.get("steps")

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._steps_before += self.step
        self.epoch, self.step, self.is_training = epoch, 0, True
        self._epoch_began = self._clock()
        self._mark_first()

    # Not on_train_batch_end: before it, Keras reads the logs of every batch, which waits for the
    # devices.
    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self.step = batch
        self._mark_first()

    def _mark_first(self) -> None:
        if self._first is None and self._steps_before + self.step:
            self._first = self._clock(), self._steps_before + self.step

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """End the training part of an epoch, before validation resets the metrics."""
        if self.is_training:
            self._end_training()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.is_training:
            self._end_training()
        self.losses = scalars(logs or {})

    def _end_training(self) -> None:
        self.is_training = False
        self._epoch_seconds = self._clock() - self._epoch_began
        steps_of_call: int = getattr(self.model, "steps_per_execution", 1) or 1
        self.step = self.num_steps or self.step + steps_of_call
        self.num_steps = self.step


class FollowedFit(FitProgress):
    """Progress of a ``fit`` for a thread that shows the last one, with a line for each epoch."""

    def __init__(
        self,
        say: Callable[[str], None],
        fits: list[FitProgress],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(clock=clock)
        self._say = say
        self._fits = fits
        self._read_at = float("-inf")

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        # Not when it is made: evaluation has the same callbacks.
        self._fits[:] = [self]

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        super().on_train_batch_begin(batch, logs)
        now = self._clock()
        if batch and now - self._read_at >= _LOSS_SECONDS:
            self._read_at = now
            self.losses = scalars(self.model.get_metrics_result())

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Write a line about the epoch, which stays, unless Keras writes the same."""
        super().on_epoch_end(epoch, logs)
        if self.params.get("verbose") != 2:
            seconds = self._clock() - self._epoch_began
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
        changes = self._strategy.share_controller.describe_changes()
        if fit is not None:
            return dataclasses.replace(fit.state(devices, rate), changes=changes)
        step = 0 if self._last_step is None else self._last_step.number + 1
        return LiveState(step=step, samples_per_second=rate, devices=devices, changes=changes)

    def measured(self) -> tuple[float | None, tuple[LiveDevice, ...]]:
        controller = self._strategy.share_controller
        records = controller.step_records()
        # The last steps, of a few seconds, at least two where there are.
        last = [r for r in records if r.began >= records[-1].began - _RECENT_SECONDS]
        records = last if len(last) > 1 else records[-2:]
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
            if is_own_device(self._strategy, name)
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


@contextlib.contextmanager
def live_run(strategy: Any, environ: Mapping[str, str]) -> Iterator[None]:
    group = group_of_process()
    worker = None if group is None else group.index
    if worker is not None and FOLDER in environ:
        in_place = bool(environ.get(IN_PLACE))
        screen: Screen = FileScreen(Path(environ[FOLDER]), worker, replaces_bar=in_place)
    else:
        screen = screen_of_process(environ)
    source = StrategySource(strategy, worker=worker)
    fits: list[FitProgress] = []

    def say_event(event: Mapping[str, Any]) -> None:
        # Notes and warnings are printed anyway.
        if event["event"] in ("shares", "log"):
            screen.say(f"evener: {event['text']}")

    with (
        watching(say_event),
        adding_callbacks(
            lambda: FollowedFit(screen.say, fits), replaces_bar=lambda: screen.replaces_bar
        ),
        LiveView(screen, lambda: source.state(fits[-1] if fits else None)),
    ):
        yield


class TrainingWork:
    """Work of the devices that train a model, from now on: those of its strategy, or its own one.

    A strategy whose steps were traced before counts and times nothing; then the samples that Keras
    counts are split by the shares.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        strategy = model_strategy(model)
        self._strategy = strategy if isinstance(strategy, Strategy) else None
        self._device = ""
        self.source: StrategySource | None = None
        self._work: CountedWork | None = None
        if self._strategy is None:
            placed = [getattr(variable.value, "device", "") for variable in model.variables]
            self._device = device_name(next(filter(None, placed), ""))
            return
        controller = self._strategy.share_controller
        if (controller.counts and controller.keeps_spans) or not self._strategy.has_run:
            self.source = StrategySource(self._strategy)
        self._work = CountedWork(self._strategy)

    @property
    def shares(self) -> dict[str, float]:
        return {self._device: 1.0} if self._strategy is None else shares_of_devices(self._strategy)

    def counted(self) -> tuple[dict[str, int], dict[str, float]]:
        _, samples, seconds = (0, {}, {}) if self._work is None else self._work.read()
        return samples, seconds if samples else {}

    def samples_in_epoch(self) -> int | None:
        """Return the samples since the metrics were reset; None if Keras does not count them."""
        trackers: Sequence[Any] = [each for each in self._model.metrics if each.name == "loss"]
        count = getattr(trackers[0], "count", None) if trackers else None
        return None if count is None else round(float(count.numpy()))

    def owned(self) -> dict[str, Owned]:
        if self._strategy is not None:
            return owned_by_device(self._strategy)
        optimizer = getattr(self._model, "optimizer", None)
        variables = [*self._model.variables, *(optimizer.variables if optimizer else ())]
        unique = {id(variable): variable for variable in variables}.values()
        num_bytes = sum(v.value.dtype.size * v.value.shape.num_elements() for v in unique)
        return {self._device: Owned(num_variables=len(unique), num_bytes=num_bytes)}

    def rows(self) -> tuple[LiveDevice, ...]:
        if self.source is not None:
            return self.source.measured()[1]
        return tuple(
            LiveDevice(name=name, share=share, memory_bytes=use and use.current_bytes)
            for name, share in self.shares.items()
            for use in [gpu_memory(name)]
        )


class Progress(FitProgress):
    """Shows the work of every device while a model trains.

    On a terminal and in a notebook it is a live display, in place of Keras's own progress bar;
    elsewhere it prints one line per epoch. Under an evener strategy it shows all devices of the
    strategy, otherwise the device of the model. Under ``evener run --live``, which shows the same,
    it displays nothing.

    Losses and metrics are read only when they are shown, so no step waits for them. As a context
    manager it restores the terminal when training ends with an error or Ctrl-C.

    Under a strategy of several devices the logs of every epoch get ``"gpu:0/share"``, the fraction
    of each batch that a device computes, ``"gpu:0/busy_seconds"`` and ``"gpu:0/waiting_seconds"``,
    the time of the epoch in which it computed and in which it did not, and on GPUs
    ``"gpu:0/memory_bytes"``. Seconds are measured if it is there before the strategy's first step.
    Callbacks after this one in the list, such as TensorBoard, and the history contain them.

    Args:
        title: Line above the display; empty for none.
        console: The console; None for standard output.
        refresh_seconds: Minimum time between two updates, in seconds, above 0.
        in_logs: Whether shares and busy seconds are added to the logs of an epoch.
        clock: Returns the time in seconds; for tests.

    Example:
        >>> import io, keras, numpy as np
        >>> from rich.console import Console
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> progress = Progress(console=Console(file=io.StringIO()))
        >>> _ = model.fit(np.ones((8, 2)), np.ones(8), epochs=2, verbose=0, callbacks=[progress])
        >>> [work.num_samples for work in progress.work]
        [16]
    """

    _view_of: Callable[..., LiveView] = LiveView
    _work_of: Callable[..., TrainingWork] = TrainingWork

    def __init__(
        self,
        title: str = "",
        *,
        console: Console | None = None,
        refresh_seconds: float = 0.5,
        in_logs: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(clock=clock)
        self._title = title
        self._console = Console() if console is None else console
        self._refresh_seconds = refresh_seconds
        self._in_logs = in_logs
        self._live: LiveView | None = None
        self._screen = screen_of(self._console)
        self._state = LiveState(title=title)
        self._work: TrainingWork | None = None

    @property
    def work(self) -> tuple[DeviceWork, ...]:
        """The work of each device since training began; empty before."""
        if self._work is None:
            return ()
        samples, seconds = self._work.counted()
        if not samples and self._num_before is not None:
            samples = self._split_samples()
        return work_of_devices(self._work.shares, samples, seconds, self._work.owned())

    def close(self) -> None:
        """End the live display and restore the terminal. Safe to call again."""
        if self._live is not None:
            live, self._live = self._live, None
            live.__exit__(None, None, None)

    def set_params(self, params: dict[str, Any]) -> None:
        """Take the parameters of a ``fit``, without Keras's own progress bar if this one is live.

        Keras gives all callbacks the same dictionary, and its progress bar is the last of them.
        """
        super().set_params(params)
        if self._screen is not None and params.get("verbose") in (1, "auto"):
            params["verbose"] = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        self.close()
        super().on_train_begin(logs)
        self._work = self._work_of(self.model)
        # Samples of the epochs before, None if Keras counts none, and their split by shares.
        self._num_before = None if self._work.samples_in_epoch() is None else 0
        self._split_before: dict[str, int] = {}
        self._updated_at = self._clock()
        # (seconds, samples) since training began, without the first step.
        self._marks: deque[tuple[float, int | None]] = deque(maxlen=_NUM_MARKS)
        self._epoch_mark: tuple[float, int | None] | None = None
        self._is_displayed = not is_shown()
        if not self._is_displayed:
            return
        if self._screen is not None:
            self._live = self._view_of(self._screen, lambda: self._state)
            self._live.__enter__()
        elif self._title:
            self._console.print(Text(self._title), soft_wrap=True)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        assert self._work is not None
        self._seconds_before = self._work.counted()[1]
        self._epoch_mark = None if self._first is None else self._mark(self._num_before)

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Update the display if that is due."""
        super().on_train_batch_begin(batch, logs)
        if batch and self._epoch_mark is None:
            self._epoch_mark = self._mark(self._num_trained())
        elif not batch or self._clock() - self._updated_at < self._refresh_seconds:
            return
        else:
            self._mark(self._num_trained())
        self._updated_at = self._clock()
        if self._live is not None:
            self.losses = scalars(self.model.get_metrics_result())
            self._show()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        assert self._work is not None
        devices = self._work.rows()
        shares, in_use = self._work.shares, {each.name: each.memory_bytes for each in devices}
        if self._in_logs and logs is not None and len(shares) > 1:
            share, busy, waiting, memory = DEVICE_LOGS
            for name, fraction in shares.items():
                logs[f"{name}{share}"] = fraction
                if name in self._epoch_busy:
                    logs[f"{name}{busy}"] = self._epoch_busy[name]
                    logs[f"{name}{waiting}"] = max(
                        0.0, self._epoch_seconds - self._epoch_busy[name]
                    )
                if (size := in_use.get(name)) is not None:
                    logs[f"{name}{memory}"] = float(size)
        if self._live is not None:
            self._show()
        elif self._is_displayed:
            line = epoch_line(self.state(devices, self._epoch_rate, title=self._title))
            self._console.print(Text(line), soft_wrap=True)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self.close()

    def _end_training(self) -> None:
        assert self._work is not None
        seconds, before = self._work.counted()[1], self._seconds_before
        self._epoch_busy = {name: now - before.get(name, 0.0) for name, now in seconds.items()}
        num_trained, split = self._num_trained(), self._split_samples()
        super()._end_training()
        self._epoch_rate = _rate(self._epoch_mark, (self._clock(), num_trained))
        self._num_before, self._split_before = num_trained, split

    def _num_trained(self) -> int | None:
        """Return the samples since training began; None if Keras does not count them."""
        assert self._work is not None
        if self._num_before is None or not self.is_training:
            return self._num_before
        return self._num_before + (self._work.samples_in_epoch() or 0)

    def _split_samples(self) -> dict[str, int]:
        """Return the samples that Keras counts, split by the shares at the end of each epoch."""
        assert self._work is not None
        shares, before = self._work.shares, self._split_before
        now = split_batch((self._num_trained() or 0) - (self._num_before or 0), [*shares.values()])
        return {n: before.get(n, 0) + more for n, more in zip(shares, now, strict=True)}

    def _mark(self, num_samples: int | None) -> tuple[float, int | None]:
        self._marks.append((self._clock(), num_samples))
        return self._marks[-1]

    def _show(self) -> None:
        assert self._work is not None
        rate = _rate(self._marks[0], self._marks[-1]) if self._marks else None
        self._state = self.state(self._work.rows(), rate, title=self._title)


def _rate(begin: tuple[float, int | None] | None, end: tuple[float, int | None]) -> float | None:
    if begin is None or begin[1] is None or end[1] is None or end[0] <= begin[0]:
        return None
    return (end[1] - begin[1]) / (end[0] - begin[0]) or None
