"""Progress while training, for any Keras model: throughput, shares, memory, time left.

The share controller of a strategy writes the last few steps into a ring buffer. The ring is read
before it wraps around, and its new steps are added to the totals. The exact number of samples of an
epoch is the weight with which Keras averages the loss.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from rich.console import Console
from rich.text import Text

from evener._tf_private.models import model_strategy
from evener.devices.names import device_name
from evener.plan import split_batch
from evener.recording.measured import MemoryUse, gpu_memory
from evener.recording.record import scalars
from evener.report.comparison import DEVICE_LOGS
from evener.report.live import LiveDevice, LiveState, LiveView, epoch_line, is_shown, screen_of
from evener.report.live_source import StrategySource, source_of
from evener.strategy import Strategy
from evener.strategy.shares import WINDOW

_NUM_MARKS = 8

Step = tuple[tuple[float, float], ...]
"""The (samples, seconds) of every replica in one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """The variables that a device owns, and their bytes."""

    num_variables: int = 0
    num_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """The work of one device since training began, and the variables it owns.

    Args:
        device: Name of the device.
        share: Fraction of every batch that it computes now; None for a device that only owns
            variables.
        num_samples: The samples it has trained on; None if they are not counted.
        busy_seconds: The duration of its forward and backward passes; None if they are not
            timed, as on a single device.
        owned: The variables it owns.
        memory: The memory that TensorFlow uses there; None if unknown, as for a CPU.
    """

    device: str
    share: float | None
    num_samples: int | None
    busy_seconds: float | None
    owned: Owned
    memory: MemoryUse | None = None


class StrategyDevices:
    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    @property
    def devices(self) -> tuple[str, ...]:
        return self.strategy.replica_devices

    @property
    def shares(self) -> tuple[float, ...]:
        return self.strategy.shares

    def last_steps(self) -> list[Step]:
        return list(zip(*self.strategy.share_controller.last_steps(), strict=True))

    def owned(self) -> dict[str, Owned]:
        owned = {name: Owned() for name in self.devices}
        for variable in self.strategy.owner_registry.variables:
            device = self.strategy.name_in_plan(variable.device)
            before = owned.get(device, Owned())
            owned[device] = Owned(
                num_variables=before.num_variables + 1,
                num_bytes=before.num_bytes + variable.num_bytes,
            )
        return owned


class SingleDevice:
    """The device of a model that was created without an evener strategy."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        variables = [getattr(variable.value, "device", "") for variable in model.variables]
        self.devices = (device_name(next(filter(None, variables), "")),)
        self.shares = (1.0,)

    def last_steps(self) -> list[Step]:
        return []

    def owned(self) -> dict[str, Owned]:
        """Return the variables of the model and of its optimizer."""
        optimizer = getattr(self._model, "optimizer", None)
        variables = [*self._model.variables, *(optimizer.variables if optimizer else ())]
        unique = {id(variable): variable for variable in variables}.values()
        num_bytes = sum(v.value.dtype.size * v.value.shape.num_elements() for v in unique)
        return {self.devices[0]: Owned(num_variables=len(unique), num_bytes=num_bytes)}


def training_devices_of(model: keras.Model) -> StrategyDevices | SingleDevice:
    strategy = model_strategy(model)
    return StrategyDevices(strategy) if isinstance(strategy, Strategy) else SingleDevice(model)


def samples_in_epoch(model: keras.Model) -> int | None:
    """Return the samples trained on since the metrics were reset; None if Keras does not count."""
    trackers: Sequence[Any] = [metric for metric in model.metrics if metric.name == "loss"]
    count = getattr(trackers[0], "count", None) if trackers else None
    return None if count is None else round(float(count.numpy()))


def new_steps(seen: Sequence[Step], now: Sequence[Step]) -> list[Step]:
    """Return the steps that were added to a ring buffer since it was last read.

    No two steps take equally long on all devices to the microsecond, so the steps common to both
    readings are the longest end of the first that is the beginning of the second.

    >>> new_steps([((1, 0.1),), ((1, 0.2),)], [((1, 0.2),), ((1, 0.3),)])
    [((1, 0.3),)]
    """
    for both in range(min(len(seen), len(now)), 0, -1):
        if list(seen[-both:]) == list(now[:both]):
            return list(now[both:])
    return list(now)


class WorkCounter:
    """Counts samples and busy seconds of every device."""

    def __init__(self, devices: StrategyDevices | SingleDevice) -> None:
        self._devices = devices
        self._read_steps = devices.last_steps()
        # Samples and seconds of each device: in complete epochs, and in this one.
        self._before = np.zeros((2, len(devices.devices)))
        self._epoch = np.zeros_like(self._before)
        self.is_timed = False
        self.last_epoch_seconds = self.seconds

    def read(self, num_in_epoch: int | None = None) -> None:
        """Add the steps that came since the last reading."""
        now = self._devices.last_steps()
        for step in new_steps(self._read_steps, now):
            self.is_timed = True
            self._epoch += np.transpose([(round(samples), seconds) for samples, seconds in step])
        self._read_steps = now
        if not self.is_timed and num_in_epoch is not None:
            self._epoch[0] = split_batch(num_in_epoch, self._devices.shares)

    def end_epoch(self, num_in_epoch: int | None) -> None:
        """Add an epoch to the total."""
        self.read(num_in_epoch)
        counted = int(self._epoch[0].sum())
        if num_in_epoch is not None and num_in_epoch > counted:
            like = self._epoch[0].tolist() if counted else self._devices.shares
            self._epoch[0] += split_batch(num_in_epoch - counted, like)
            self._epoch[1] *= num_in_epoch / counted if counted else 1.0
        self.last_epoch_seconds = tuple(self._epoch[1].tolist())
        self._before += self._epoch
        self._epoch[:] = 0

    @property
    def samples(self) -> tuple[int, ...]:
        """The samples of every device since training began."""
        return tuple(map(int, self._before[0] + self._epoch[0]))

    @property
    def seconds(self) -> tuple[float, ...]:
        """The busy seconds of every device since training began."""
        return tuple((self._before[1] + self._epoch[1]).tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressMark:
    """The progress of training at one time of a monotonic clock, since training began."""

    seconds: float
    num_steps: int
    samples: tuple[int, ...]  # Of each device
    busy_seconds: tuple[float, ...]  # Of each device

    def rate_since(self, before: ProgressMark | None) -> float | None:
        """Return the samples per second of all devices since an earlier mark."""
        if before is None or self.seconds <= before.seconds:
            return None
        num_samples = sum(self.samples) - sum(before.samples)
        return num_samples / (self.seconds - before.seconds) or None


class Progress(keras.callbacks.Callback):
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
    ``"gpu:0/memory_bytes"``.
    Callbacks after this one in the list, such as TensorBoard, and the history contain them.

    Args:
        title: Line above the display; empty for none.
        console: The console; None for standard output.
        refresh_seconds: Minimum time between two updates, in seconds, above 0.
        in_logs: Whether shares and busy seconds are added to the logs of an epoch.
        clock: Returns the time in seconds; for tests.
        find_devices: Returns the devices that train a model; for tests.
        memory_of: Returns the memory in use on a device; for tests.

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

    def __init__(
        self,
        title: str = "",
        *,
        console: Console | None = None,
        refresh_seconds: float = 0.5,
        in_logs: bool = True,
        clock: Callable[[], float] = time.monotonic,
        find_devices: Callable[[keras.Model], StrategyDevices | SingleDevice] = training_devices_of,
        memory_of: Callable[[str], MemoryUse | None] = gpu_memory,
    ) -> None:
        super().__init__()
        self._title = title
        self._console = Console() if console is None else console
        self._refresh_seconds = refresh_seconds
        self._in_logs = in_logs
        self._clock = clock
        self._find_devices = find_devices
        self._memory_of = memory_of
        self._live: LiveView | None = None
        self._screen = screen_of(self._console)
        self._source: StrategySource | None = None
        self._state = LiveState(title=title)
        self._devices: StrategyDevices | SingleDevice | None = None
        self._num_steps: int | None = None
        self._epoch_rate: float | None = None
        self._first_mark: ProgressMark | None = None
        self._epoch_mark: ProgressMark | None = None
        self._metrics: dict[str, float] = {}

    @property
    def work(self) -> tuple[DeviceWork, ...]:
        """The work of each device since training began; empty before."""
        if self._devices is None:
            return ()
        training, owned = self._devices, self._devices.owned()
        seconds = self._counter.seconds if self._counter.is_timed else itertools.repeat(None)
        samples = self._counter.samples if self._counts_samples else itertools.repeat(None)
        figures = zip(training.shares, samples, seconds, strict=False)
        computing = dict(zip(training.devices, figures, strict=True))
        owners = [name for name, what in owned.items() if what.num_variables]
        work: list[DeviceWork] = []
        for name in dict.fromkeys([*computing, *owners]):
            share, num_samples, busy_seconds = computing.get(name, (None, None, None))
            work.append(
                DeviceWork(
                    device=name,
                    share=share,
                    num_samples=num_samples,
                    busy_seconds=busy_seconds,
                    owned=owned.get(name, Owned()),
                    memory=self._memory_of(name),
                )
            )
        return tuple(work)

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
        """Find the devices and begin to count."""
        self.close()
        self._devices = self._find_devices(self.model)
        self._counter = WorkCounter(self._devices)
        self._counts_samples = samples_in_epoch(self.model) is not None
        self._num_steps = self.params.get("steps")
        self._epoch = self._step = self._read_at = self._steps_before = 0
        self._is_training = False
        self._metrics = {}
        self._updated_at = self._clock()
        # The first mark is behind the first step, most of whose time is tracing.
        self._first_mark = self._epoch_mark = None
        self._marks: deque[ProgressMark] = deque(maxlen=_NUM_MARKS)
        self._source = source_of(getattr(self._devices, "strategy", None))
        self._is_shown = not is_shown()
        if not self._is_shown:
            return
        if self._screen is not None:
            self._live = self._view_of(self._screen, lambda: self._state)
            self._live.__enter__()
        elif self._title:
            self._console.print(Text(self._title), soft_wrap=True)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Begin an epoch."""
        self._epoch, self._step, self._read_at = epoch, 0, 0
        self._epoch_began = self._clock()
        self._is_training = True
        self._metrics = {}
        if self._steps_before and self._first_mark is None:
            self._add_mark()
        if self._first_mark is not None:
            self._epoch_mark = self._now()

    # Not on_train_batch_end: before it, Keras reads the logs of every batch, which waits for the
    # devices.
    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Measure and update the display if that is due."""
        self._step = batch
        if batch == 0:
            return
        is_due = self._clock() - self._updated_at >= self._refresh_seconds
        is_due = is_due or self._first_mark is None
        if is_due or batch - self._read_at + self._steps_per_execution() > WINDOW:
            self._counter.read(self._samples_in_epoch() if is_due else None)
            self._read_at = batch
        if is_due:
            self._updated_at = self._add_mark().seconds
            if self._live is not None:
                self._metrics = scalars(self.model.get_metrics_result())
                self._show()

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """End the training part of an epoch, before validation resets the metrics."""
        if self._devices is not None and self._is_training:
            self._end_training_of_epoch()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Show the epoch."""
        if self._is_training:
            self._end_training_of_epoch()
        self._metrics = scalars(logs or {})
        training = self._devices
        if (
            self._in_logs
            and logs is not None
            and training is not None
            and len(training.devices) > 1
        ):
            share, busy, waiting, memory = DEVICE_LOGS
            shares = zip(training.devices, training.shares, strict=True)
            for number, (name, fraction) in enumerate(shares):
                logs[f"{name}{share}"] = fraction
                if self._counter.is_timed:
                    seconds = self._counter.last_epoch_seconds[number]
                    logs[f"{name}{busy}"] = seconds
                    logs[f"{name}{waiting}"] = max(0.0, self._epoch_seconds - seconds)
                use = self._memory_of(name)
                if use is not None:
                    logs[f"{name}{memory}"] = float(use.current_bytes)
        if self._live is not None:
            self._show()
        elif self._is_shown:
            line = epoch_line(self._state_now(rate=self._epoch_rate))
            self._console.print(Text(line), soft_wrap=True)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Show the final state."""
        self.close()

    def _end_training_of_epoch(self) -> None:
        self._is_training = False
        self._epoch_seconds = self._clock() - self._epoch_began
        self._counter.end_epoch(self._samples_in_epoch())
        self._num_steps = self._num_steps or self._step + self._steps_per_execution()
        self._step = self._num_steps
        self._epoch_rate = self._now().rate_since(self._epoch_mark)
        self._steps_before += self._step
        self._step = 0

    def _now(self) -> ProgressMark:
        return ProgressMark(
            seconds=self._clock(),
            num_steps=self._steps_before + self._step,
            samples=self._counter.samples,
            busy_seconds=self._counter.seconds,
        )

    def _add_mark(self) -> ProgressMark:
        now = self._now()
        self._marks.append(now)
        if self._first_mark is None:
            self._first_mark = self._epoch_mark = now
        return now

    def _steps_per_execution(self) -> int:
        return getattr(self.model, "steps_per_execution", 1) or 1

    def _samples_in_epoch(self) -> int | None:
        return samples_in_epoch(self.model) if self._counts_samples else None

    def _show(self) -> None:
        """Hand the state over to the thread that displays it."""
        is_known = self._counts_samples and self._marks
        rate = self._marks[-1].rate_since(self._marks[0]) if is_known else None
        self._state = self._state_now(rate=rate)

    def _state_now(self, *, rate: float | None) -> LiveState:
        num_epochs = self.params.get("epochs", 1)
        now, first, seconds_left = self._now(), self._first_mark, None
        if self._num_steps is not None and first is not None and now.num_steps > first.num_steps:
            # The current epoch counts by its remaining steps.
            epochs_left = num_epochs - self._epoch - (0 if self._is_training else 1)
            steps_left = max(0, epochs_left * self._num_steps - self._step)
            step_seconds = (now.seconds - first.seconds) / (now.num_steps - first.num_steps)
            seconds_left = steps_left * step_seconds
        return LiveState(
            title=self._title,
            epoch=self._epoch + 1,
            num_epochs=num_epochs,
            step=self._step if self._is_training else self._num_steps or 0,
            num_steps=self._num_steps,
            losses=self._metrics,
            samples_per_second=rate,
            seconds_left=seconds_left,
            devices=self._rows(now) if self._source is None else self._source.measured()[1],
        )

    def _rows(self, now: ProgressMark) -> tuple[LiveDevice, ...]:
        """Return what every device that computes does now."""
        training, since = self._devices, self._marks[0] if self._marks else now
        assert training is not None
        # The fraction of the last seconds in which each device computed, if timed.
        is_known = self._counter.is_timed and now.seconds > since.seconds
        rows: list[LiveDevice] = []
        for number, (name, share) in enumerate(zip(training.devices, training.shares, strict=True)):
            use = self._memory_of(name)
            busy = now.busy_seconds[number] - since.busy_seconds[number]
            rows.append(
                LiveDevice(
                    name=name,
                    share=share,
                    busy=busy / (now.seconds - since.seconds) if is_known else None,
                    memory_bytes=None if use is None else use.current_bytes,
                )
            )
        return tuple(rows)
