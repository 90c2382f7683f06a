"""A model, its devices, a clock and a terminal for the progress display, without TensorFlow."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyte
from rich.console import Console

from evener.plan import split_batch
from evener.recording.measured import Owned
from evener.report.live import LiveDevice, LiveState, LiveView, Screen
from evener.report.progress import Progress


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeWork:
    """Two devices whose work is counted, or not."""

    def __init__(self, model: FakeModel, *, is_counted: bool = True) -> None:
        self.model = model
        self.is_counted = is_counted
        self.shares = {"gpu:0": 0.75, "gpu:1": 0.25}
        self.samples = dict.fromkeys(self.shares, 0)
        self.seconds = dict.fromkeys(self.shares, 0.0)

    def take_step(self, num_samples: int, seconds: float) -> None:
        for name, part in zip(self.shares, split_batch(num_samples, [3, 1]), strict=True):
            self.samples[name] += part
            self.seconds[name] += seconds

    def counted(self) -> tuple[dict[str, int], dict[str, float]]:
        if not self.is_counted or not any(self.samples.values()):
            return {}, {}
        return dict(self.samples), dict(self.seconds)

    def samples_in_epoch(self) -> int | None:
        return self.model.counted if self.model.counts else None

    def owned(self) -> dict[str, Owned]:
        return {
            "gpu:0": Owned(num_variables=3, num_bytes=2048),
            "gpu:1": Owned(num_variables=2, num_bytes=1024),
            "cpu:0": Owned(num_variables=5, num_bytes=40),
        }

    def rows(self) -> tuple[LiveDevice, ...]:
        return tuple(
            LiveDevice(name=name, share=share, busy=1.0, memory_bytes=2**30)
            for name, share in self.shares.items()
        )


class FakeModel:
    """The part of a model that `Progress` reads: the samples behind its loss, and its metrics."""

    def __init__(self, steps_per_execution: int = 1) -> None:
        self.steps_per_execution = steps_per_execution
        self.counts = True
        self.counted = 0
        self.num_read = 0

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

    model: FakeModel = field(default_factory=FakeModel)
    is_counted: bool = True
    is_terminal: bool = False
    title: str = ""

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        self.out = io.StringIO()
        self.progress = ProgressOfCalls(
            self.title,
            console=Console(file=self.out, width=100, force_terminal=self.is_terminal, _environ={}),
            clock=self.clock,
        )
        self.progress._work_of = self._make_work  # pyright: ignore[reportAttributeAccessIssue]
        self.progress.set_model(self.model)

    def _make_work(self, model: FakeModel) -> FakeWork:
        self.work = FakeWork(model, is_counted=self.is_counted)
        return self.work

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
            self.model.counted = 0
            self.progress.on_epoch_begin(epoch)
            for begin in range(0, len(batches), self.model.steps_per_execution):
                self.progress.on_train_batch_begin(begin)
                for size in batches[begin : begin + self.model.steps_per_execution]:
                    self.clock.now += seconds
                    self.work.take_step(size, seconds)
                    self.model.counted += size
            if validates:
                self.progress.on_test_begin()
                self.clock.now += 1000
                self.model.counted = 0
            self.progress.on_epoch_end(epoch, {"accuracy": 0.5, "loss": 0.25})
        self.progress.on_train_end()


class Terminal(io.StringIO):
    """Stream of a terminal.

    Args:
        width: Columns.
        height: Lines.
    """

    def __init__(self, width: int = 80, height: int = 24) -> None:
        super().__init__()
        self.screen = pyte.Screen(width, height)
        self.screen.set_mode(pyte.modes.LNM)
        self._stream = pyte.Stream(self.screen)
        self.console = Console(
            file=self,
            width=width,
            height=height,
            force_terminal=True,
            force_jupyter=False,
            color_system=None,
            _environ={},
        )

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._stream.feed(text)
        return super().write(text)

    @property
    def lines(self) -> list[str]:
        """The lines up to the last one that is not empty."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip("\n").split("\n")
