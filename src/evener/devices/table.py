"""An inventory as a table: devices, their use, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evener.devices.fields import Device, InventoryFields
from evener.devices.problem import Problem
from evener.terminal import standard_output
from evener.units import format_bytes

_UNKNOWN = "-"
# Up to this number, the GPUs at the other end of equal links are listed by name.
_FEW_LINKS = 2


def print_inventory(found: InventoryFields, console: Console | None = None) -> None:
    """Print the devices as a table, followed by problems and their fixes.

    Args:
        found: The inventory.
        console: The console; None for standard output.
    """
    console = standard_output() if console is None else console
    console.print(Text(_versions(found)), soft_wrap=True)
    console.print(device_table(found))
    for problem in _problems(found):
        console.print(Text(f"\n{problem}"), soft_wrap=True)
    used = ", ".join(device.name for device in found.used)
    console.print(Text(f"\nUsed with {found.spec}: {used}"), soft_wrap=True)


def device_table(found: InventoryFields) -> Table:
    """Return the table of all devices."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("device", no_wrap=True)
    table.add_column("name", overflow="fold")
    table.add_column("compute", no_wrap=True)
    table.add_column("free / total", no_wrap=True)
    if found.links:
        table.add_column("links")
    # A reason is a sentence, which may take several lines.
    table.add_column("used", no_wrap=all(device.reason is None for device in found.devices))
    for device in found.devices:
        table.add_row(
            Text(device.name),
            Text(device.product or _UNKNOWN),
            Text(_compute(device)),
            Text(_memory(device)),
            *([Text(_links(device, found))] if found.links else []),
            Text(_used(device, found)),
        )
    return table


def _versions(found: InventoryFields) -> str:
    cuda = f" for CUDA {found.cuda_version}" if found.cuda_version else " without CUDA"
    parts = [f"TensorFlow {found.tensorflow_version}{cuda}"]
    if found.driver_version:
        parts.append(f"NVIDIA driver {found.driver_version}")
    if found.cuda_driver_version:
        parts.append("which supports CUDA {}.{}".format(*found.cuda_driver_version))
    return ", ".join(parts)


def _compute(device: Device) -> str:
    if device.kind == "cpu":
        return f"{device.num_cores} cores"
    if device.compute_capability is None:
        return _UNKNOWN
    return "{}.{}".format(*device.compute_capability)


def _memory(device: Device) -> str:
    sizes = (device.memory_free_bytes, device.memory_total_bytes)
    return " / ".join(_UNKNOWN if size is None else format_bytes(size) for size in sizes)


def _links(device: Device, found: InventoryFields) -> str:
    """Return the links to the other GPUs, grouped by kind."""
    others: dict[str, list[str]] = {}
    for link in found.links:
        if device.name in link.devices:
            first, second = link.devices
            others.setdefault(str(link), []).append(second if first == device.name else first)
    if len(others) == 1 and sum(map(len, others.values())) > _FEW_LINKS:
        return f"{next(iter(others))}: all"
    return "\n".join(f"{kind}: {', '.join(names)}" for kind, names in others.items())


def _used(device: Device, found: InventoryFields) -> str:
    if device.use == "host":
        return "for input pipelines"
    if device.kind == "cpu" and (found.spec.startswith("cpu:") or len(found.used) > 1):
        return "yes, as a stand-in"
    if device.reason is not None:
        return f"no: {device.reason.what}"
    caps = " + ".join(format_bytes(cap) for cap in device.caps_bytes)
    return f"yes, up to {caps}" if caps else "yes"


def _problems(found: InventoryFields) -> Iterator[Problem]:
    """Yield the problems that can be fixed, each once."""
    reasons: Iterable[Problem | None] = (device.reason for device in found.devices)
    for problem in dict.fromkeys((*found.problems, *reasons)):
        if problem is not None and problem.code != "DEV-113":
            yield problem
