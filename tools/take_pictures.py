"""Take the pictures of the README and of the start page from one real run, by ``make pictures``.

It trains a model on two stand-ins of unequal shares, and writes the live view in the middle of the
run to ``docs/live_view.svg``, and the top of the run's page to ``docs/report.png``. The page is
drawn by Chromium: ``chromium`` on the PATH, or what the variable ``CHROMIUM`` names.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
from rich.console import Console

import evener
from evener.report import Progress
from evener.report.live import panel

DOCS = Path(__file__).parents[1] / "docs"
WIDTH, HEIGHT = 1000, 760
"""Size of the page in pixels."""
COLUMNS = 80
EPOCH, BATCH = 3, 15
"""Where the live view is drawn."""


class DrawOnce(keras.callbacks.Callback):
    """Draws what a live view shows at one batch."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress
        self._epoch = 0
        self.drawing = ""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if (self._epoch, batch) == (EPOCH, BATCH):
            console = Console(file=io.StringIO(), record=True, width=COLUMNS)
            console.print(panel(self._progress._state))
            drawing = console.export_svg(title="training")
            # Without fonts of the network.
            self.drawing = re.sub(r"@font-face \{.*?\}\s*", "", drawing, flags=re.DOTALL)


def main() -> None:
    strategy = evener.Strategy(devices="cpu:2", shares=[5, 3])
    x = np.random.default_rng(0).normal(size=(20_000, 64)).astype("float32")
    with strategy.scope():
        hidden = [keras.layers.Dense(1024, "relu") for _ in range(3)]
        model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(1)])
        model.compile(optimizer="adam", loss="mse")
    terminal = Console(file=io.StringIO(), force_terminal=True, width=COLUMNS)
    progress = Progress(console=terminal)
    draw = DrawOnce(progress)
    with tempfile.TemporaryDirectory() as name:
        with evener.record(name, strategy=strategy):
            model.fit(
                x, np.sin(x[:, :1]), batch_size=500, epochs=5, verbose=0, callbacks=[progress, draw]
            )
        (DOCS / "live_view.svg").write_text(draw.drawing, encoding="utf-8")
        page = Path(name, "page.html")
        command = str(Path(sys.executable).with_name("evener"))
        subprocess.run([command, "report", name, "--out", str(page)], check=True)
        words = [
            *(os.environ.get("CHROMIUM", "chromium"), "--headless", "--no-sandbox"),
            *("--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}"),
            *(f"--screenshot={DOCS / 'report.png'}", page.as_uri()),
        ]
        subprocess.run(words, check=True)


if __name__ == "__main__":
    main()
