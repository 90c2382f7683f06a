"""The live view as text: a table of the devices, a progress bar, and the losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from evener.report.live.state import LiveDevice, LiveState
from evener.units import format_bytes, format_seconds

_UNKNOWN = "-"
_BAR_WIDTH = 20
_OTHER_LINES = 6
_LEAST_WAIT = 0.01


def panel(state: LiveState, *, num_lines: int = 1000) -> RenderableType:
    """Return the view for a terminal or a notebook.

    Args:
        state: State of the training.
        num_lines: Lines that there are; devices for which there is no line are counted.
    """
    parts: list[RenderableType] = []
    if state.title:
        parts.append(_line(state.title, style="bold"))
    if state.devices:
        num_shown = max(1, num_lines - _OTHER_LINES)
        parts.append(_table(state.devices[:num_shown]))
        if len(state.devices) > num_shown:
            parts.append(_line(f"and {len(state.devices) - num_shown} more devices", style="dim"))
    parts.append(_progress(state))
    losses = losses_text(state.losses)
    if losses:
        parts.append(_line(losses))
    return Group(*parts)


def line_of(state: LiveState) -> str:
    """Return the state as one line of plain text.

    >>> line_of(LiveState(epoch=1, num_epochs=3, step=20, num_steps=100, losses={"loss": 0.25}))
    'epoch 1/3  step 20/100  loss 0.2500'
    """
    parts = _where(state)
    if state.samples_per_second is not None:
        parts.append(f"{state.samples_per_second:,.0f} samples/s")
    if state.seconds_left is not None:
        parts.append(_left(state.seconds_left))
    if state.losses:
        parts.append(losses_text(state.losses))
    if len(state.devices) > 1:
        parts += [_device_text(device) for device in state.devices]
    return "  ".join(parts)


def epoch_line(state: LiveState) -> str:
    """Return one line about a completed epoch.

    >>> epoch_line(LiveState(epoch=1, num_epochs=10, losses={"loss": 0.25}))
    'epoch  1/10  loss 0.2500'
    """
    width = len(str(state.num_epochs))
    parts = [f"epoch {state.epoch:>{width}}/{state.num_epochs}"]
    if state.losses:
        parts.append(losses_text(state.losses))
    if state.samples_per_second is not None:
        parts.append(f"{state.samples_per_second:,.0f} samples/s")
    if len(state.devices) > 1:
        shares = ((d.name, f"{d.share:.1%}") for d in state.devices if d.share is not None)
        parts += [f"{name} {share.replace('%', ' %')}" for name, share in shares]
    return "  ".join(parts)


def losses_text(losses: Mapping[str, float]) -> str:
    """Return the loss and the metrics in one line, the loss first."""
    in_order = sorted(losses.items(), key=lambda item: item[0] != "loss")
    return "  ".join(f"{name} {value:.4f}" for name, value in in_order)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _table(devices: Sequence[LiveDevice]) -> Table:
    columns: list[tuple[str, Callable[[LiveDevice], str], bool]] = [
        ("device", lambda d: d.name, True),
        ("share", lambda d: _percent(d.share), True),
        ("busy", lambda d: _percent(d.busy), True),
        ("waits for", _waiting, any(d.waits is not None for d in devices)),
        ("memory", _memory, any(d.memory_bytes is not None for d in devices)),
    ]
    if any(device.worker is not None for device in devices):
        worker = lambda d: _UNKNOWN if d.worker is None else str(d.worker)  # noqa: E731
        columns.insert(0, ("worker", worker, True))
    # The table has to fit in 80 columns.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    shown = [(heading, cell) for heading, cell, is_shown in columns if is_shown]
    for heading, _ in shown:
        is_text = heading in ("device", "waits for")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
    for device in devices:
        table.add_row(*(Text(cell(device)) for _, cell in shown))
    return table


def _progress(state: LiveState) -> RenderableType:
    text = "  ".join(_where(state))
    rate = state.samples_per_second
    after = [] if rate is None else [f"{rate:,.0f} samples/s"]
    if state.epoch is not None:
        after.append(_left(state.seconds_left))
    if state.num_steps is None or state.num_epochs is None or state.epoch is None:
        return _line("  ".join([text, *after]))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    done = (state.epoch - 1) * state.num_steps + state.step
    bar = ProgressBar(total=state.num_epochs * state.num_steps, completed=done, width=_BAR_WIDTH)
    grid.add_row(Text(text), bar, Text("  ".join(after)))
    return grid


def _where(state: LiveState) -> list[str]:
    if state.epoch is None:
        return [f"step {state.step}"]
    return [
        f"epoch {state.epoch}/{state.num_epochs or '?'}",
        f"step {state.step}/{state.num_steps or '?'}",
    ]


def _device_text(device: LiveDevice) -> str:
    name = device.name if device.worker is None else f"worker {device.worker} {device.name}"
    busy = "" if device.busy is None else f" busy {_percent(device.busy)}"
    return f"{name} {_percent(device.share)}{busy}"


def _waiting(device: LiveDevice) -> str:
    if device.waits is None:
        return _UNKNOWN
    # Copies and rounding of clocks are not worth a name.
    if not device.waits_for or device.waits < _LEAST_WAIT:
        return ""
    return f"{device.waits_for} {_percent(device.waits)}"


def _memory(device: LiveDevice) -> str:
    if device.memory_bytes is None:
        return _UNKNOWN
    used = format_bytes(device.memory_bytes)
    return used if device.memory_limit is None else f"{used} of {format_bytes(device.memory_limit)}"


def _percent(fraction: float | None) -> str:
    return _UNKNOWN if fraction is None else f"{fraction * 100:.0f} %"


def _left(seconds: float | None) -> str:
    if seconds is None:
        return f"{_UNKNOWN} left"
    return f"{round(seconds)} s left" if seconds < 60 else f"{format_seconds(seconds)} left"
