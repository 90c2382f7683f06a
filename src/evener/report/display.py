"""A table of the work of devices."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from evener.report.work import DeviceWork
from evener.units import format_bytes, format_seconds

_UNKNOWN = "-"


def device_table(devices: Sequence[DeviceWork]) -> Table:
    """Return a table of the work of each device.

    Args:
        devices: The work of each device.
    """
    columns: list[tuple[str, list[str]]] = [
        ("device", [d.device for d in devices]),
        ("share", [_percent(d.share) for d in devices]),
    ]
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


def _percent(share: float | None) -> str:
    return _UNKNOWN if share is None else f"{share:.1%}".replace("%", " %")


def _count(number: int | None) -> str:
    return _UNKNOWN if number is None else f"{number:,}"


def _seconds(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else format_seconds(seconds)


def _memory(device: DeviceWork) -> str:
    if device.memory is None:
        return _UNKNOWN
    used, peak = device.memory.current_bytes, device.memory.peak_bytes
    return f"{format_bytes(used)} ({format_bytes(peak)})"
