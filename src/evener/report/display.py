"""The display of progress: a live panel on a terminal, one line per epoch elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from evener.report.work import DeviceWork
from evener.units import format_bytes, format_seconds

_BAR_WIDTH = 24
_UNKNOWN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a training run that is displayed.

    Args:
        title: Line above the display; empty for none.
        epoch: The current epoch, from 1.
        num_epochs: Number of epochs.
        step: Completed steps of this epoch.
        num_steps: The steps of an epoch; None if unknown.
        metrics: The loss and the metrics by name, from all samples of the epoch.
        samples_per_second: Throughput of all devices together; None if unknown.
        rates: Samples per second of each device; empty if unknown.
        seconds_left: Seconds until the end of the last epoch; None if unknown.
        devices: The work of each device.
    """

    title: str
    epoch: int
    num_epochs: int
    step: int
    num_steps: int | None
    metrics: Mapping[str, float]
    samples_per_second: float | None
    rates: Mapping[str, float]
    seconds_left: float | None
    devices: Sequence[DeviceWork]


def panel(shot: Snapshot) -> RenderableType:
    """Return the live display: the devices, a progress bar, and the metrics of the epoch."""
    parts: list[RenderableType] = [Text(shot.title, style="bold")] if shot.title else []
    return Group(*parts, device_table(shot.devices, shot.rates), _bar(shot), Text(_numbers(shot)))


def epoch_line(shot: Snapshot) -> str:
    """Return one line about a completed epoch."""
    width = len(str(shot.num_epochs))
    parts = [f"epoch {shot.epoch:>{width}}/{shot.num_epochs}", *_metrics(shot.metrics)]
    if shot.samples_per_second is not None:
        parts.append(f"{shot.samples_per_second:,.0f} samples/s")
    if len(shot.devices) > 1:
        parts.extend(f"{d.device} {_percent(d.share)}" for d in shot.devices if d.share is not None)
    return "  ".join(parts)


def device_table(devices: Sequence[DeviceWork], rates: Mapping[str, float] | None = None) -> Table:
    """Return a table of the work of each device.

    Args:
        devices: The work of each device.
        rates: Current samples per second of each device; None to leave out the column.
    """
    columns: list[tuple[str, list[str]]] = [
        ("device", [d.device for d in devices]),
        ("share", [_percent(d.share) for d in devices]),
    ]
    if rates is not None:
        columns.append(("samples/s", [_rate(rates.get(d.device)) for d in devices]))
    columns.append(("samples", [_count(d.num_samples) for d in devices]))
    if any(d.busy_seconds is not None for d in devices):
        columns.append(("computing", [_seconds(d.busy_seconds) for d in devices]))
    columns.append(("variables", [_count(d.owned.num_variables) for d in devices]))
    columns.append(("owned", [format_bytes(d.owned.num_bytes) for d in devices]))
    if any(d.memory is not None for d in devices):
        columns.append(("in use (peak)", [_memory(d) for d in devices]))
    # The table has to fit in 80 columns.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for index, (heading, _) in enumerate(columns):
        table.add_column(heading, justify="right" if index else "left", no_wrap=True)
    for row in zip(*(cells for _, cells in columns), strict=True):
        table.add_row(*(Text(cell) for cell in row))
    return table


def _bar(shot: Snapshot) -> RenderableType:
    line = Table.grid(padding=(0, 1))
    total = None if shot.num_steps is None else shot.num_epochs * shot.num_steps
    done = 0 if shot.num_steps is None else (shot.epoch - 1) * shot.num_steps + shot.step
    line.add_row(
        Text(f"epoch {shot.epoch}/{shot.num_epochs}"),
        # Without a total, rich would animate the bar; it stays empty instead.
        ProgressBar(total=total or 1, completed=done, width=_BAR_WIDTH),
        Text(f"step {shot.step}/{shot.num_steps or '?'}"),
        Text(_left(shot.seconds_left)),
    )
    return line


def _left(seconds: float | None) -> str:
    if seconds is None:
        return f"{_UNKNOWN} left"
    # Tenths of a second would be more precise than the estimate.
    return f"{round(seconds)} s left" if seconds < 60 else f"{format_seconds(seconds)} left"


def _numbers(shot: Snapshot) -> str:
    parts = _metrics(shot.metrics)
    if shot.samples_per_second is not None:
        parts.append(f"{shot.samples_per_second:,.0f} samples/s")
    return "  ".join(parts)


def _metrics(metrics: Mapping[str, float]) -> list[str]:
    # The loss first; Keras sorts it among the others.
    in_order = sorted(metrics.items(), key=lambda item: item[0] != "loss")
    return [f"{name} {value:.4f}" for name, value in in_order]


def _percent(share: float | None) -> str:
    return _UNKNOWN if share is None else f"{share:.1%}".replace("%", " %")


def _rate(rate: float | None) -> str:
    return _UNKNOWN if rate is None else f"{rate:,.0f}"


def _count(number: int | None) -> str:
    return _UNKNOWN if number is None else f"{number:,}"


def _seconds(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else format_seconds(seconds)


def _memory(device: DeviceWork) -> str:
    if device.memory is None:
        return _UNKNOWN
    used, peak = device.memory.current_bytes, device.memory.peak_bytes
    return f"{format_bytes(used)} ({format_bytes(peak)})"
