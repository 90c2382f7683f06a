"""Progress while training, for any Keras model: throughput, shares, memory, time left."""

from __future__ import annotations

import atexit
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
from rich.console import Console
from rich.live import Live
from rich.text import Text

from evener.recording.losses import scalars
from evener.recording.memory import MemoryUse, gpu_memory
from evener.report.comparison import DEVICE_LOGS
from evener.report.display import Snapshot, epoch_line, panel
from evener.report.throughput import Measurement, Throughput
from evener.report.work import (
    DeviceWork,
    Owned,
    TrainingDevices,
    WorkCounter,
    samples_in_epoch,
    training_devices_of,
)
from evener.strategy.share_controller import WINDOW


class Progress(keras.callbacks.Callback):
    """Shows the work of every device while a model trains.

    On a terminal it is a live display; elsewhere it prints one line per epoch. Under an evener
    strategy it shows all devices of the strategy, otherwise the device of the model. Call ``fit``
    with ``verbose=0`` to turn off Keras's own progress bar.

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

    def __init__(
        self,
        title: str = "",
        *,
        console: Console | None = None,
        refresh_seconds: float = 0.25,
        in_logs: bool = True,
        clock: Callable[[], float] = time.monotonic,
        find_devices: Callable[[keras.Model], TrainingDevices] = training_devices_of,
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
        self._live: Live | None = None
        self._devices: TrainingDevices | None = None
        self._num_steps: int | None = None
        self._epoch_rate: float | None = None
        self._metrics: dict[str, float] = {}

    @property
    def work(self) -> tuple[DeviceWork, ...]:
        """The work of each device since training began; empty before."""
        if self._devices is None:
            return ()
        training, owned = self._devices, self._devices.owned()
        seconds = self._counter.seconds if self._counter.is_timed else itertools.repeat(None)
        samples = self._counter.samples if self._counts_samples else itertools.repeat(None)
        computing = [
            DeviceWork(
                device=name,
                share=share,
                num_samples=num_samples,
                busy_seconds=busy_seconds,
                owned=owned.get(name, Owned()),
                memory=self._memory_of(name),
            )
            for name, share, num_samples, busy_seconds in zip(
                training.devices, training.shares, samples, seconds, strict=False
            )
        ]
        return (*computing, *self._owners_only(owned))

    def close(self) -> None:
        """End the live display and restore the terminal. Safe to call again."""
        atexit.unregister(self.close)
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> Progress:
        """Return the callback itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the live display."""
        self.close()

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Find the devices and begin to count."""
        self.close()
        self._devices = self._find_devices(self.model)
        self._counter = WorkCounter(self._devices)
        self._throughput = Throughput()
        self._counts_samples = samples_in_epoch(self.model) is not None
        self._num_steps = self.params.get("steps")
        self._epoch = self._step = self._read_at = self._steps_before = 0
        self._is_training = False
        self._metrics = {}
        self._updated_at = self._clock()
        if not self._console.is_terminal:
            if self._title:
                self._console.print(Text(self._title), soft_wrap=True)
        else:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
            # Without it, Ctrl-C would leave the cursor hidden.
            atexit.register(self.close)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Begin an epoch."""
        self._epoch, self._step, self._read_at = epoch, 0, 0
        self._epoch_began = self._clock()
        self._is_training = True
        self._metrics = {}
        if self._steps_before and not self._throughput.has_started:
            self._throughput.add(self._now())
        self._throughput.start_epoch(self._now())

    # Not on_train_batch_end: before it, Keras reads the logs of every batch, which waits for the
    # devices.
    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Measure and update the display if that is due."""
        self._step = batch
        if batch == 0:
            return
        is_due = self._clock() - self._updated_at >= self._refresh_seconds
        is_due = is_due or not self._throughput.has_started
        if is_due or batch - self._read_at + self._steps_per_execution() > WINDOW:
            self._counter.read(self._samples_in_epoch() if is_due else None)
            self._read_at = batch
        if is_due:
            self._update()

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """End the training part of an epoch, before validation resets the metrics."""
        if self._devices is not None and self._is_training:
            self._end_training_of_epoch()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Show the epoch."""
        if self._is_training:
            self._end_training_of_epoch()
        self._metrics = scalars(logs or {})
        if self._in_logs and logs is not None:
            logs.update(self._device_logs())
        if self._live is not None:
            self._show()
            return
        line = epoch_line(self._snapshot(rate=self._epoch_rate))
        self._console.print(Text(line), soft_wrap=True)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Show the final state."""
        self.close()

    def _device_logs(self) -> dict[str, float]:
        """Return the share of every device, its seconds in the last epoch, if timed, and memory."""
        training = self._devices
        if training is None or len(training.devices) < 2:
            return {}
        share, busy, waiting, memory = DEVICE_LOGS
        found: dict[str, float] = {}
        for number, (name, fraction) in enumerate(
            zip(training.devices, training.shares, strict=True)
        ):
            found[f"{name}{share}"] = fraction
            if self._counter.is_timed:
                seconds = self._counter.last_epoch_seconds[number]
                found[f"{name}{busy}"] = seconds
                found[f"{name}{waiting}"] = max(0.0, self._epoch_seconds - seconds)
            use = self._memory_of(name)
            if use is not None:
                found[f"{name}{memory}"] = float(use.current_bytes)
        return found

    def _end_training_of_epoch(self) -> None:
        self._is_training = False
        self._epoch_seconds = self._clock() - self._epoch_began
        self._counter.end_epoch(self._samples_in_epoch())
        self._num_steps = self._num_steps or self._step + self._steps_per_execution()
        self._step = self._num_steps
        self._epoch_rate = self._throughput.epoch_rate(self._now())
        self._steps_before += self._step
        self._step = 0

    def _now(self) -> Measurement:
        return Measurement(
            seconds=self._clock(),
            num_steps=self._steps_before + self._step,
            samples=self._counter.samples,
        )

    def _steps_per_execution(self) -> int:
        return getattr(self.model, "steps_per_execution", 1) or 1

    def _samples_in_epoch(self) -> int | None:
        return samples_in_epoch(self.model) if self._counts_samples else None

    def _update(self) -> None:
        now = self._now()
        self._updated_at = now.seconds
        self._throughput.add(now)
        if self._live is not None:
            self._metrics = scalars(self.model.get_metrics_result())
            self._show()

    def _show(self) -> None:
        assert self._live is not None
        shot = self._snapshot(rate=sum(self._rates().values()) or None)
        self._live.update(panel(shot), refresh=True)

    def _rates(self) -> dict[str, float]:
        if self._devices is None or not self._counts_samples:
            return {}
        return dict(zip(self._devices.devices, self._throughput.rates(), strict=False))

    def _snapshot(self, *, rate: float | None) -> Snapshot:
        num_epochs = self.params.get("epochs", 1)
        seconds_left = None
        if self._num_steps is not None:
            # The current epoch counts by its remaining steps.
            epochs_left = num_epochs - self._epoch - (0 if self._is_training else 1)
            steps_left = epochs_left * self._num_steps - self._step
            seconds_left = self._throughput.seconds_left(self._now(), steps_left)
        return Snapshot(
            title=self._title,
            epoch=self._epoch + 1,
            num_epochs=num_epochs,
            step=self._step if self._is_training else self._num_steps or 0,
            num_steps=self._num_steps,
            metrics=self._metrics,
            samples_per_second=rate,
            rates=self._rates(),
            seconds_left=seconds_left,
            devices=self.work,
        )

    def _owners_only(self, owned: Mapping[str, Owned]) -> list[DeviceWork]:
        assert self._devices is not None
        return [
            DeviceWork(
                device=name,
                share=None,
                num_samples=None,
                busy_seconds=None,
                owned=what,
                memory=self._memory_of(name),
            )
            for name, what in owned.items()
            if name not in self._devices.devices and what.num_variables
        ]
