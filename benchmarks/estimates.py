"""Memory that `evener estimate` predicts for real models, beside that of Keras's own steps.

A model trains on a device in a process of its own, whose allocator is the GPU's (BFC) and counts
bytes; data and program are in another process, as on the host of a GPU. No evener is in it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from json import loads
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from side_by_side import real_models
from side_by_side.apart import devices_apart, join_cluster
from side_by_side.figures import Aim, terminal, write_json
from side_by_side.real_models import REAL_MODELS
from side_by_side.workers import Worker, closing

from evener.base.text import format_bytes

LEAST_RATIO = 0.98
_STEPS = 5
_CAP_BYTES = 12 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """Memory of a model on one device, in bytes.

    Attributes:
        model: Name of the model.
        predicted: Total that `evener estimate` prints.
        peak: Peak of a step: the median of several.
        most: Largest peak of these steps.
    """

    model: str
    predicted: int
    peak: int
    most: int

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.peak


class KerasApart:
    """Model that Keras trains on a device of a cluster.

    Args:
        addresses: Host and port of the device.
        model: A name of `REAL_MODELS`.
    """

    def __init__(self, *, addresses: list[str], model: str) -> None:
        import tensorflow as tf

        join_cluster(addresses)
        trained = REAL_MODELS[model]
        strategy = tf.distribute.OneDeviceStrategy("/job:device/replica:0/task:0/device:CPU:0")
        with strategy.scope():
            self._model = trained.compiled()
        self._data = tf.data.Dataset.from_tensors(trained.batch()).repeat()

    def train(self) -> None:
        """Take a step."""
        self._model.fit(self._data, steps_per_epoch=1, verbose=0)


def predicted_bytes(model: str) -> int:
    """Return the total of `evener estimate` for the batch of a model."""
    command = [sys.executable, "-m", "evener", "estimate", "--json", real_models.__file__, model]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    (whole,) = (
        row
        for row in loads(done.stdout)["memory"]
        if row["num_micro_batches"] == 1 and not row["recompute"]
    )
    return whole["total_bytes"]


def measure(model: str) -> Estimated:
    """Estimate a model, and train it for some steps."""
    predicted = predicted_bytes(model)
    peaks: list[int] = []
    with devices_apart(1, cap_bytes=_CAP_BYTES) as (device,):
        host = Worker(KerasApart, addresses=[device.call("address")], model=model)
        with closing(host):
            for _ in range(2):
                host.call("train")
            for _ in range(_STEPS):
                device.call("forget")
                host.call("train")
                peaks.append(device.call("used")["peak"])
    return Estimated(
        model=model,
        predicted=predicted,
        peak=round(statistics.median(peaks)),
        most=max(peaks),
    )


def main(
    models: Annotated[list[str] | None, typer.Argument(help="models; all by default")] = None,
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path(
        "results/estimates.json"
    ),
    check: Annotated[bool, typer.Option("--check", help="exit 1 if the aim is missed")] = False,
) -> None:
    """Compare the estimated and the measured memory of real models on one device."""
    console = terminal()
    chosen = models or list(REAL_MODELS)
    if unknown := set(chosen) - set(REAL_MODELS):
        raise typer.BadParameter(f"{sorted(unknown)}; there are {', '.join(REAL_MODELS)}")
    rows: list[Estimated] = []
    for model in chosen:
        rows.append(measure(model))
        console.print(f"{model}: {rows[-1].ratio:.3f}")
    table = Table("model", "estimated", "measured", "most", "estimated / measured")
    for row in rows:
        sizes = [format_bytes(size) for size in (row.predicted, row.peak, row.most)]
        table.add_row(row.model, *sizes, f"{row.ratio:.3f}")
    console.print(table)
    ratios = [row.ratio for row in rows]
    aims = [Aim(what="least estimated / measured", wanted=LEAST_RATIO, got=min(ratios))]
    for aim in aims:
        console.print(str(aim))
    console.print(f"median {statistics.median(ratios):.3f}, most {max(ratios):.3f}")
    figures: dict[str, Any] = {"models": [{**asdict(r), "ratio": r.ratio} for r in rows]}
    write_json(json, figures, aims)
    if check and not all(aim.is_met for aim in aims):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
