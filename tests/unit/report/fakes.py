"""A model, its devices and a clock for the progress display, without TensorFlow behind them."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
from rich.console import Console

from evener.report.live import LiveState, LiveView, Screen
from evener.report.progress import MemoryUse, Owned, Progress, Step
from evener.strategy.shares import WINDOW


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeDevices:
    """Two devices whose steps are timed, or not; the ring holds as many as the engine's."""

    devices: tuple[str, ...] = ("gpu:0", "gpu:1")
    shares: tuple[float, ...] = (0.75, 0.25)
    is_timed: bool = True
    steps: list[Step] = field(default_factory=list)

    def take_step(self, num_samples: int, seconds: float) -> None:
        if self.is_timed:
            # No two steps take exactly as long.
            taken = seconds + len(self.steps) * 1e-6
            parts = tuple((num_samples * share, taken) for share in self.shares)
            self.steps.append(parts)

    def last_steps(self) -> list[Step]:
        return self.steps[-WINDOW:]

    def owned(self) -> dict[str, Owned]:
        first, second = (*self.devices, "-")[:2]
        return {
            first: Owned(num_variables=3, num_bytes=2048),
            second: Owned(num_variables=2, num_bytes=1024),
            "cpu:0": Owned(num_variables=5, num_bytes=40),
        }


class FakeModel:
    """The part of a model that `Progress` reads: the samples behind its loss, and its metrics."""

    def __init__(self, steps_per_execution: int = 1) -> None:
        self.steps_per_execution = steps_per_execution
        self.counted = 0
        self.metrics = [
            SimpleNamespace(name="accuracy"),
            SimpleNamespace(
                name="loss", count=SimpleNamespace(numpy=lambda: np.float32(self.counted))
            ),
        ]
        self.num_read = 0

    def count(self, num_samples: int) -> None:
        self.counted += num_samples

    def reset(self) -> None:
        self.counted = 0

    def get_metrics_result(self) -> dict[str, object]:
        self.num_read += 1
        return {"accuracy": np.float32(0.5), "f1": np.zeros(3), "loss": np.float32(0.25)}


class ViewOfCalls(LiveView):
    """A live view that shows each state when it is there, without a thread."""

    def __init__(self, screen: Screen, state: Callable[[], LiveState | None]) -> None:
        super().__init__(screen, state)
        self.screen = screen

    def __enter__(self) -> ViewOfCalls:
        self.screen.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.screen.close()


class ProgressOfCalls(Progress):
    _view_of = ViewOfCalls

    def _show(self) -> None:
        super()._show()
        assert self._live is not None
        self._live.screen.show(self._state)


@dataclass
class Run:
    """A training run that a test drives."""

    training_devices: FakeDevices = field(default_factory=FakeDevices)
    model: FakeModel = field(default_factory=FakeModel)
    is_terminal: bool = False
    memory: MemoryUse | None = None
    title: str = ""

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        self.out = io.StringIO()
        self.progress = ProgressOfCalls(
            self.title,
            console=Console(file=self.out, width=100, force_terminal=self.is_terminal, _environ={}),
            clock=self.clock,
            find_devices=lambda model: self.training_devices,
            memory_of=lambda name: self.memory,
        )
        self.progress.set_model(self.model)

    @property
    def text(self) -> str:
        return self.out.getvalue()

    def fit(
        self,
        batches: list[int],
        *,
        epochs: int = 1,
        seconds: float = 0.1,
        validates: bool = False,
        steps: int | None = -1,
    ) -> None:
        """Do what ``fit`` does: batches of these sizes, each of which takes so long."""
        steps = len(batches) if steps == -1 else steps
        self.progress.set_params({"epochs": epochs, "steps": steps})
        self.progress.on_train_begin()
        for epoch in range(epochs):
            self.model.reset()
            self.progress.on_epoch_begin(epoch)
            for begin in range(0, len(batches), self.model.steps_per_execution):
                self.progress.on_train_batch_begin(begin)
                for size in batches[begin : begin + self.model.steps_per_execution]:
                    self.clock.now += seconds
                    self.training_devices.take_step(size, seconds)
                    self.model.count(size)
            if validates:
                self.progress.on_test_begin()
                self.clock.now += 1000
                self.model.reset()
            self.progress.on_epoch_end(epoch, {"accuracy": 0.5, "loss": 0.25})
        self.progress.on_train_end()
