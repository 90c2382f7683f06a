"""The inventory: every device, whether it is used, and if not, why; as a value and as a table."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evener.base.terminal import standard_output
from evener.base.text import format_bytes
from evener.devices import reasons
from evener.devices.machine import (
    Host,
    LinkKind,
    Nvml,
    NvmlGpu,
    NvmlMachine,
    TensorFlowGpu,
    TensorFlowView,
    read_host,
    read_tensorflow,
)
from evener.devices.reasons import (
    DEFAULT_MIN_FREE_BYTES,
    Problem,
    Situation,
    match_gpus,
    why_cuda_13,
    why_not_listed,
    why_not_used,
    why_old_driver,
)
from evener.devices.spec import DeviceSpec, SpecError, spec_from
from evener.errors import did_you_mean

# Devices, links, and the fields of an inventory.

DeviceKind = Literal["gpu", "cpu"]
Use = Literal["compute", "host", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of the machine; None where a value is unknown."""

    # ``"gpu:1"`` as TensorFlow numbers the physical GPUs, ``"cpu:0"``; a GPU that TensorFlow does
    # not see has the driver's number: ``"nvidia:1"``
    name: str
    kind: DeviceKind  # ``"gpu"`` or ``"cpu"``
    product: str | None = None  # The product name
    # ``"compute"`` if it computes, ``"host"`` for a CPU that only prepares the input of GPUs, else
    # ``"none"``
    use: Use
    reason: Problem | None = None  # Problem that keeps it from computing; None if it computes
    memory_total_bytes: int | None = None  # Its memory
    memory_free_bytes: int | None = None  # Its free memory
    # Memory caps of the spec, in bytes; several if it is split into several devices
    caps_bytes: tuple[int, ...] = ()
    compute_capability: tuple[int, int] | None = None  # Major and minor number
    num_multiprocessors: int | None = None  # Number of streaming multiprocessors
    num_cores: int | None = None  # Number of cores of a CPU that this process may use
    uuid: str | None = None  # Its UUID in the driver
    nvml_index: int | None = None  # Its index in the driver, as in nvidia-smi
    pci_bus_id: str | None = None  # Its address on the PCI bus


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The fastest connection of two GPUs."""

    devices: tuple[str, str]  # Names of the two GPUs
    kind: LinkKind  # ``"nvlink"``, ``"pcie"`` (below one host bridge) or ``"host"`` (across)
    count: int = 1  # Number of NVLinks; 1 for the other kinds

    def __str__(self) -> str:
        """Return the link in a few characters, such as ``"nvlink x4"``."""
        return f"{self.kind} x{self.count}" if self.count > 1 else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryFields:
    """Fields of an `Inventory`, which documents them."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    problems: tuple[Problem, ...] = ()
    fallback: Problem | None = None
    spec: str = "all"
    driver_version: str | None = None
    cuda_driver_version: tuple[int, int] | None = None
    tensorflow_version: str | None = None
    cuda_version: str | None = None

    @property
    def used(self) -> tuple[Device, ...]:
        """The devices that compute."""
        return tuple(device for device in self.devices if device.use == "compute")


# The inventory: every device, whether it is used, and if not, why.


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory(InventoryFields):
    """The devices of the machine, and which of them a device spec uses.

    Args:
        devices: All devices: GPUs by number, then the CPU or its stand-ins.
        links: The connections of the GPUs, each pair once.
        problems: Problems of the whole machine.
        fallback: Problem for which fewer devices are used than were requested; None if all are.
        spec: The device spec as text.
        driver_version: Version of NVIDIA's driver.
        cuda_driver_version: The newest CUDA that the driver supports.
        tensorflow_version: Version of the installed TensorFlow.
        cuda_version: The CUDA that TensorFlow was built for.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the inventory as plain dicts, lists, strings and numbers."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Return the inventory as one JSON object; sizes are bytes."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        """Return the inventory as a plain text table."""
        from evener.base.terminal import WIDTH, text_of

        return text_of(lambda console: print_inventory(self, console), WIDTH)

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        from evener.base.terminal import html_of

        return html_of(str(self))


# The warning that fewer devices are used than were requested, and why.


def fallback_of(
    devices: Sequence[Device],
    problems: Sequence[Problem] = (),
    *,
    asked_for: Collection[str] | None = None,
) -> Problem | None:
    """Return why fewer GPUs are used than were requested, or None if all of them are used."""
    gpus = [device for device in devices if device.kind == "gpu"]
    used = [device.name for device in gpus if device.use == "compute"]
    wanted = [device for device in gpus if asked_for is None or device.name in asked_for]
    missing = [gpu for gpu in wanted if gpu.reason is not None and not gpu.reason.by_choice]
    if used:
        if not missing:
            return None
        reasons = _by_reason(missing)
        return Problem(
            code="DEV-021",
            what=f"Only {', '.join(used)} will be used, not {_names(missing)}.",
            why=_explained(reasons),
            fix=next(iter(reasons)).fix,
        )
    # No GPU is left: then reasons that the user has chosen matter too.
    reasons = _by_reason(missing) | dict.fromkeys(problems, "") or _by_reason(gpus)
    return Problem(
        code="DEV-020",
        what="No GPU will be used: everything runs on cpu:0.",
        why=_explained(reasons) or "there is no GPU.",
        fix=next((reason.fix for reason in reasons), "use cpu:2 for two stand-in devices."),
    )


def _by_reason(devices: Sequence[Device]) -> dict[Problem, str]:
    """Return the names of the devices for each reason."""
    named: dict[Problem, list[Device]] = {}
    for device in devices:
        if device.reason is not None:
            named.setdefault(device.reason, []).append(device)
    return {reason: _names(group) for reason, group in named.items()}


def _explained(reasons: dict[Problem, str]) -> str:
    lines = (
        f"{names}{': ' if names else ''}{reason.what.rstrip('.')} ({reason.why.rstrip('.')})."
        for reason, names in reasons.items()
    )
    return " ".join(lines)


def _names(devices: Sequence[Device]) -> str:
    return ", ".join(device.name for device in devices)


# Joins the views of the driver, TensorFlow and the host into an inventory: a pure function.


def join(
    spec: DeviceSpec,
    machine: NvmlMachine,
    view: TensorFlowView,
    host: Host,
    *,
    min_free_bytes: int = DEFAULT_MIN_FREE_BYTES,
) -> Inventory:
    """Return the inventory of a machine under a device spec."""
    situation = Situation(machine=machine, view=view, min_free_bytes=min_free_bytes)
    matched = match_gpus(view.gpus, machine.gpus, view.environment.visible_devices)
    seen = [_listed_gpu(gpu, matched.get(gpu.index), spec, situation) for gpu in view.gpus]
    known = {gpu.index for gpu in matched.values()}
    unseen = [_unlisted_gpu(gpu, situation) for gpu in machine.gpus if gpu.index not in known]
    gpus = (*seen, *unseen)
    problems = _problems(situation, gpus)
    _check_spec(spec, gpus, problems)

    num_stand_ins = spec.num_stand_ins
    if spec.source == "default" and not _computing(gpus) and view.num_logical_cpus > 1:
        num_stand_ins = view.num_logical_cpus
    fallback = None
    if not num_stand_ins:
        asked_for = {gpu.name for gpu in spec.gpus} if spec.kind == "gpu" else None
        fallback = fallback_of(gpus, problems, asked_for=asked_for)
    return Inventory(
        devices=(
            *gpus,
            *_cpus(host, num_stand_ins, spec.stand_in_caps, feeds_gpus=_computing(gpus)),
        ),
        links=_links(machine.gpus, {gpu.nvml_index: gpu.name for gpu in gpus}),
        problems=problems,
        fallback=fallback,
        spec=str(spec),
        driver_version=machine.driver_version,
        cuda_driver_version=machine.cuda_driver_version,
        tensorflow_version=view.version,
        cuda_version=view.cuda_version,
    )


def _listed_gpu(
    gpu: TensorFlowGpu, known: NvmlGpu | None, spec: DeviceSpec, situation: Situation
) -> Device:
    name = f"gpu:{gpu.index}"
    requests = [request for request in spec.gpus if request.index == gpu.index]
    if spec.kind != "all" and not requests:
        reason = reasons.not_in_spec(str(spec))
    elif spec.kind == "all" and not gpu.visible:
        reason = reasons.hidden_in_tensorflow()
    else:
        reason = why_not_used(gpu, known, situation)
    caps = [request.cap_bytes for request in requests] if requests else gpu.caps_bytes
    return _gpu(
        known or NvmlGpu(index=-1, name=gpu.name, compute_capability=gpu.compute_capability),
        name=name,
        reason=reason,
        caps_bytes=tuple(cap for cap in caps if cap is not None),
    )


def _unlisted_gpu(gpu: NvmlGpu, situation: Situation) -> Device:
    return _gpu(
        gpu, name=f"nvidia:{gpu.index}", reason=why_not_listed(gpu, situation), caps_bytes=()
    )


def _gpu(
    known: NvmlGpu, *, name: str, reason: Problem | None, caps_bytes: tuple[int, ...]
) -> Device:
    return Device(
        name=name,
        kind="gpu",
        product=known.name,
        use="compute" if reason is None else "none",
        reason=reason,
        memory_total_bytes=known.memory_total_bytes,
        memory_free_bytes=known.memory_free_bytes,
        caps_bytes=caps_bytes,
        compute_capability=known.compute_capability,
        num_multiprocessors=known.num_multiprocessors,
        uuid=known.uuid,
        nvml_index=known.index if known.index >= 0 else None,
        pci_bus_id=known.pci_bus_id,
    )


def _cpus(
    host: Host, num_stand_ins: int, caps: Sequence[int], *, feeds_gpus: bool
) -> Iterable[Device]:
    for index in range(num_stand_ins or 1):
        yield Device(
            name=f"cpu:{index}",
            kind="cpu",
            product=host.name,
            use="host" if feeds_gpus else "compute",
            memory_total_bytes=host.memory_total_bytes,
            memory_free_bytes=host.memory_free_bytes,
            num_cores=host.num_cores,
            caps_bytes=tuple(caps[index : index + 1]),
        )


def _computing(gpus: Iterable[Device]) -> bool:
    return any(gpu.use == "compute" for gpu in gpus)


def _links(gpus: Iterable[NvmlGpu], names: Mapping[int | None, str]) -> tuple[Link, ...]:
    return tuple(
        Link(devices=(names[gpu.index], names[link.to_index]), kind=link.kind, count=link.count)
        for gpu in gpus
        for link in gpu.links
        if gpu.index < link.to_index and gpu.index in names and link.to_index in names
    )


def _problems(situation: Situation, gpus: Iterable[Device]) -> tuple[Problem, ...]:
    """Return the problems of the whole machine, the main cause first."""
    machine, view = situation.machine, situation.view
    found: list[Problem | None] = []
    if machine.failure is not None:
        kinds = {"no_driver": reasons.no_driver, "driver_mismatch": reasons.driver_mismatch}
        found.append(kinds.get(machine.failure.kind, reasons.unreadable)(machine.failure.message))
    elif not machine.gpus and not view.gpus:
        found.append(reasons.no_gpu())
    has_driver = machine.failure is None or machine.failure.kind != "no_driver"
    if not view.built_with_cuda and has_driver:
        found.append(reasons.cpu_only_wheel(view.version))
    found.append(why_old_driver(situation))
    if view.built_with_cuda and not view.gpus:
        found.append(why_cuda_13(view))
    reported = {gpu.reason for gpu in gpus}
    return tuple(item for item in dict.fromkeys(found) if item is not None and item not in reported)


def _check_spec(spec: DeviceSpec, gpus: Iterable[Device], problems: tuple[Problem, ...]) -> None:
    seen = {gpu.name: gpu for gpu in gpus if gpu.name.startswith("gpu:")}
    for request in spec.gpus:
        if request.name not in seen:
            raise unknown_device(request.name, seen, fallback_of(list(gpus), problems))
    for name in dict.fromkeys(request.name for request in spec.gpus):
        caps = sum(seen[name].caps_bytes)
        total = seen[name].memory_total_bytes
        if total is not None and caps > total:
            raise SpecError(
                "DEV-011",
                f"The memory caps of {name} exceed its memory.",
                why=f"the caps add up to {format_bytes(caps)}; {name} ({seen[name].product}) has "
                f"{format_bytes(total)}.",
                fix=f"lower the caps, for example {name}@{total // 2**31}GiB.",
            )


def unknown_device(name: str, known: Iterable[str], no_gpus: Problem | None = None) -> SpecError:
    """Return the error for a device that does not exist."""
    names = tuple(known)
    has_gpus = any(other.startswith("gpu:") for other in names)
    why = f"TensorFlow has {', '.join(names) or 'no GPU'} here."
    if name.startswith("gpu:") and not has_gpus and no_gpus is not None:
        why += f" {no_gpus.why}"
    instead = f"use {' or '.join(names)}" if names else "use cpu:1 for the CPU alone"
    return SpecError(
        "DEV-010",
        f"There is no device {name!r}.{did_you_mean(name, names)}",
        why=why,
        fix=f"{instead}, or all; `evener devices` lists the devices, and the reason for each GPU "
        "that is missing.",
    )


# The inventory of this machine: NVIDIA's library, TensorFlow and the host, joined.


def inventory(spec: str | None = None) -> Inventory:
    """Return all devices, which of them a device spec uses, and why the others are not used.

    TensorFlow's runtime is not started: `use_devices` can still be called afterwards.

    Args:
        spec: The device spec, for example ``"all"``, ``"gpu:0,gpu:1@10GiB"`` or ``"cpu:2"``;
            None for the environment's ``EVENER_DEVICES``, or ``all`` without it.

    Returns:
        The inventory.

    Raises:
        DeviceError: DEV-001 to DEV-007 if the spec cannot be read, DEV-010 if it names a GPU
            that is not there, DEV-011 if a cap is above the GPU's memory.

    Example:
        ``print(evener.inventory().to_json())``
    """
    parsed = spec_from(spec, os.environ)
    return join(parsed, Nvml().read_machine(), read_tensorflow(), read_host())


# An inventory as a table: devices, their use, and what is wrong.

_UNKNOWN = "-"
# Up to this number, the GPUs at the other end of equal links are listed by name.
_FEW_LINKS = 2


def print_inventory(found: InventoryFields, console: Console | None = None) -> None:
    """Print the devices as a table, followed by problems and their fixes."""
    console = standard_output() if console is None else console
    console.print(Text(_versions(found)), soft_wrap=True)
    console.print(device_table(found))
    for problem in _table_problems(found):
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
            *([Text(_table_links(device, found))] if found.links else []),
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


def _table_links(device: Device, found: InventoryFields) -> str:
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


def _table_problems(found: InventoryFields) -> Iterator[Problem]:
    """Yield the problems that can be fixed, each once."""
    reasons: Iterable[Problem | None] = (device.reason for device in found.devices)
    for problem in dict.fromkeys((*found.problems, *reasons)):
        if problem is not None and problem.code != "DEV-113":
            yield problem
