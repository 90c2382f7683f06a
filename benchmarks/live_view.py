"""Cost of the live view: steps with it and without, in turns, in one process.

    python benchmarks/live_view.py [ROUNDS]

Model: 784, 4 x 1024, 10, batch 512, on two stand-ins. Both run the same steps on the same data;
with the view, the step has the clocks that it reads, ``fit`` has its callback, and its thread
draws. Seconds of the processor tell more than those of the clock on a machine with other work.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Any

import keras
import numpy as np
from rich.console import Console

import evener
from evener.report.live import LiveView, TerminalScreen
from evener.report.progress import FollowedFit, StrategySource

_STEPS = 12
_BATCH = 512
_DRAWINGS = 50
_QUARTILES = (25, 50, 75)


def main(rounds: int) -> None:
    """Print the median step of each, and the median of the ratios of neighbours."""
    for name, found in zip(("clock", "processor"), _measured(rounds), strict=True):
        off, on = found[False], found[True]
        low, middle, high = np.percentile([b / a for a, b in zip(off, on, strict=True)], _QUARTILES)
        print(
            f"{name:9}  step without {statistics.median(off) * 1e3:.2f} ms, "
            f"with {statistics.median(on) * 1e3:.2f} ms; "
            f"with / without {middle:.4f} (quartiles {low:.4f} to {high:.4f})"
        )


def _measured(rounds: int) -> tuple[dict[bool, list[float]], dict[bool, list[float]]]:
    """Return the seconds of a step in each round: of the clock, and of the processor."""
    evener.use_devices("cpu:2")
    plain, shown = _Trained(is_shown=False), _Trained(is_shown=True)
    walls: dict[bool, list[float]] = {False: [], True: []}
    processors: dict[bool, list[float]] = {False: [], True: []}
    for number in range(-1, rounds):
        for trained in (plain, shown) if number % 2 else (shown, plain):
            before = time.process_time()
            seconds = trained.run()
            used = time.process_time() - before
            if number >= 0:
                walls[trained.is_shown].append(seconds)
                processors[trained.is_shown].append(used / _STEPS)
    in_ms = shown.draw() * 1e3
    print(f"a drawing takes {in_ms:.2f} ms of one processor: {in_ms / 5:.2f} % at two a second")
    return walls, processors


class _Trained:
    def __init__(self, *, is_shown: bool) -> None:
        self.is_shown = is_shown
        strategy = evener.Strategy(devices="cpu:0,cpu:1", shares=[1, 1])
        self._source = StrategySource(strategy) if is_shown else None
        with strategy.scope():
            hidden = [keras.layers.Dense(1024, activation="relu") for _ in range(4)]
            self._model: Any = keras.Sequential(
                [keras.Input((784,)), *hidden, keras.layers.Dense(10)]
            )
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            self._model.compile("sgd", loss, metrics=["accuracy"])
        random = np.random.default_rng(0)
        self._x = random.random((_STEPS * _BATCH, 784), np.float32)
        self._y = random.integers(0, 10, _STEPS * _BATCH)

    def run(self) -> float:
        """Return the seconds of a step."""
        if self._source is None:
            return self._fit([])
        source, fits = self._source, []
        with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
            console = Console(file=nowhere, force_terminal=True, width=120, height=40)
            screen = TerminalScreen(console)
            fit = FollowedFit(screen.say, begin=fits.append)
            with LiveView(screen, lambda: source.state(fits[-1] if fits else None)):
                return self._fit([fit])

    def draw(self) -> float:
        """Return the seconds of the processor that one drawing takes."""
        assert self._source is not None
        with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
            screen = TerminalScreen(Console(file=nowhere, force_terminal=True, width=120))
            screen.open()
            before = time.thread_time()
            for _ in range(_DRAWINGS):
                screen.show(self._source.state(None))
            seconds = time.thread_time() - before
            screen.close()
        return seconds / _DRAWINGS

    def _fit(self, callbacks: list[Any]) -> float:
        began = time.perf_counter()
        self._model.fit(
            self._x, self._y, batch_size=_BATCH, shuffle=False, verbose=0, callbacks=callbacks
        )
        return (time.perf_counter() - began) / _STEPS


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
