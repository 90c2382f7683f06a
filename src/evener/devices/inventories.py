"""The inventory: every device, whether it is used, and if not, why; as a value and as a table."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from evener.base.notebook import ShownAsText
from evener.base.text import format_bytes
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
from evener.devices.names import KindName
from evener.devices.reasons import (
    DEFAULT_MIN_FREE_BYTES,
    Problem,
    Situation,
    match_gpus,
    problems_of_machine,
    why_not_listed,
    why_not_used,
)
from evener.devices.spec import DeviceSpec, SpecError, spec_from
from evener.errors import did_you_mean

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineDevice:
    # "gpu:1" as TensorFlow numbers the physical GPUs, "cpu:0"; a GPU that TensorFlow does not see
    # has the driver's number: "nvidia:1".
    name: str
    kind: KindName
    product: str | None = None
    use: Literal["compute", "host", "none"]  # "host": a CPU that only prepares the input of GPUs
    reason: Problem | None = None  # that keeps it from computing
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    caps_bytes: tuple[int, ...] = ()  # of the spec; several if it is split into several devices
    compute_capability: tuple[int, int] | None = None
    num_multiprocessors: int | None = None
    num_cores: int | None = None  # of a CPU, that this process may use
    uuid: str | None = None
    nvml_index: int | None = None
    pci_bus_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    devices: tuple[str, str]
    kind: LinkKind
    count: int = 1  # of NVLinks; 1 for the other kinds

    def __str__(self) -> str:
        return f"{self.kind} x{self.count}" if self.count > 1 else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory(ShownAsText):
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

    devices: tuple[MachineDevice, ...]
    links: tuple[GpuLink, ...] = ()
    problems: tuple[Problem, ...] = ()
    fallback: Problem | None = None
    spec: str = "all"
    driver_version: str | None = None
    cuda_driver_version: tuple[int, int] | None = None
    tensorflow_version: str | None = None
    cuda_version: str | None = None

    @property
    def used(self) -> tuple[MachineDevice, ...]:
        """The devices that compute."""
        return tuple(device for device in self.devices if device.use == "compute")

    def to_dict(self) -> dict[str, Any]:
        """Return the inventory as plain dicts, lists, strings and numbers."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Return the inventory as one JSON object; sizes are bytes."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        from evener.base.terminal import WIDTH, text_of

        return text_of(lambda console: print_inventory(self, console), WIDTH)


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


def join(
    spec: DeviceSpec,
    machine: NvmlMachine,
    view: TensorFlowView,
    host: Host,
    *,
    min_free_bytes: int = DEFAULT_MIN_FREE_BYTES,
) -> Inventory:
    """Return the inventory of a machine under a device spec: a pure function.

    With the default spec, several logical CPUs and no GPU mean that the program has configured
    stand-ins, which are used.
    """
    situation = Situation(machine=machine, view=view, min_free_bytes=min_free_bytes)
    matched = match_gpus(view.gpus, machine.gpus, view.environment.visible_devices)
    known = {gpu.index for gpu in matched.values()}
    gpus = [_listed_gpu(gpu, matched.get(gpu.index), spec, situation) for gpu in view.gpus]
    gpus += [
        _gpu(gpu, name=f"nvidia:{gpu.index}", reason=why_not_listed(gpu, situation))
        for gpu in machine.gpus
        if gpu.index not in known
    ]
    reported = {gpu.reason for gpu in gpus}
    problems = tuple(
        problem
        for problem in dict.fromkeys(problems_of_machine(situation))
        if problem is not None and problem not in reported
    )
    _check_spec(spec, gpus, problems)

    has_gpu = any(gpu.use == "compute" for gpu in gpus)
    num_stand_ins = spec.num_stand_ins
    if spec.source == "default" and not has_gpu and view.num_logical_cpus > 1:
        num_stand_ins = view.num_logical_cpus
    fallback = None
    if not num_stand_ins:
        asked_for = {gpu.name for gpu in spec.gpus} if spec.kind == "gpu" else None
        fallback = explain_fallback(gpus, problems, asked_for=asked_for)
    cpus = [
        MachineDevice(
            name=f"cpu:{index}",
            kind="cpu",
            product=host.name,
            use="host" if has_gpu else "compute",
            memory_total_bytes=host.memory_total_bytes,
            memory_free_bytes=host.memory_free_bytes,
            num_cores=host.num_cores,
            caps_bytes=spec.stand_in_caps[index : index + 1],
        )
        for index in range(num_stand_ins or 1)
    ]
    names = {gpu.nvml_index: gpu.name for gpu in gpus}
    links = [
        GpuLink(devices=(names[gpu.index], names[link.to_index]), kind=link.kind, count=link.count)
        for gpu in machine.gpus
        for link in gpu.links
        if gpu.index < link.to_index and gpu.index in names and link.to_index in names
    ]
    return Inventory(
        devices=(*gpus, *cpus),
        links=tuple(links),
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
) -> MachineDevice:
    requests = [request for request in spec.gpus if request.index == gpu.index]
    if spec.kind != "all" and not requests:
        reason = Problem(
            code="DEV-113",
            what="Not in the device spec.",
            why=f"the device spec {str(spec)!r} does not include it.",
            fix="add it to the spec, or use all.",
            by_choice=True,
        )
    elif spec.kind == "all" and not gpu.visible:
        reason = Problem(
            code="DEV-115",
            what="Hidden by tf.config.set_visible_devices.",
            why="this program removed it from the devices that TensorFlow may use.",
            fix="remove that call, or name the GPU in the device spec.",
            by_choice=True,
        )
    else:
        reason = why_not_used(gpu, known, situation)
    caps = [request.cap_bytes for request in requests] if requests else gpu.caps_bytes
    return _gpu(
        known or NvmlGpu(index=-1, name=gpu.name, compute_capability=gpu.compute_capability),
        name=f"gpu:{gpu.index}",
        reason=reason,
        caps_bytes=tuple(cap for cap in caps if cap is not None),
    )


def _gpu(
    known: NvmlGpu, *, name: str, reason: Problem | None, caps_bytes: tuple[int, ...] = ()
) -> MachineDevice:
    return MachineDevice(
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


def _check_spec(
    spec: DeviceSpec, gpus: Sequence[MachineDevice], problems: Sequence[Problem]
) -> None:
    seen = {gpu.name: gpu for gpu in gpus if gpu.name.startswith("gpu:")}
    for request in spec.gpus:
        if request.name not in seen:
            raise unknown_device(request.name, seen, explain_fallback(gpus, problems))
    for request in spec.gpus:
        gpu = seen[request.name]
        caps, total = sum(gpu.caps_bytes), gpu.memory_total_bytes
        if total is not None and caps > total:
            raise SpecError(
                "DEV-011",
                f"The memory caps of {gpu.name} exceed its memory.",
                why=f"the caps add up to {format_bytes(caps)}; {gpu.name} ({gpu.product}) has "
                f"{format_bytes(total)}.",
                fix=f"lower the caps, for example {gpu.name}@{total // 2**31}GiB.",
            )


def unknown_device(name: str, known: Iterable[str], no_gpus: Problem | None = None) -> SpecError:
    names = tuple(known)
    has_gpus = any(other.startswith("gpu:") for other in names)
    why = f"TensorFlow has {', '.join(names) or 'no GPU'} here."
    if name.startswith("gpu:") and not has_gpus and no_gpus is not None:
        why += f" {no_gpus.why}"
    instead = f"use {' or '.join(names) or 'cpu:1, one CPU device, which is named cpu:0'}"
    return SpecError(
        "DEV-010",
        f"There is no device {name!r}.{did_you_mean(name, names)}",
        why=why,
        fix=f"{instead}, or all; `evener devices` lists the devices, and the reason for each GPU "
        "that is missing.",
    )


def explain_fallback(
    devices: Sequence[MachineDevice],
    problems: Sequence[Problem] = (),
    *,
    asked_for: Collection[str] | None = None,
) -> Problem | None:
    """Return why fewer GPUs are used than were requested, or None if all of them are used."""
    gpus = [device for device in devices if device.kind == "gpu"]
    used = [gpu.name for gpu in gpus if gpu.use == "compute"]
    missing = [
        gpu
        for gpu in gpus
        if asked_for is None or gpu.name in asked_for
        if gpu.reason is not None and not gpu.reason.by_choice
    ]
    if used and not missing:
        return None
    # Without any GPU, reasons that the user has chosen matter too.
    is_by_choice = not missing and not problems
    names: dict[Problem, list[str]] = {}
    for gpu in gpus if is_by_choice else missing:
        if gpu.reason is not None:
            names.setdefault(gpu.reason, []).append(gpu.name)
    if not used:
        names |= {problem: [] for problem in problems}
    why = " ".join(
        f"{', '.join(group)}{': ' if group else ''}{reason.what.rstrip('.')} "
        f"({reason.why.rstrip('.')})."
        for reason, group in names.items()
    )
    fix = next((reason.fix for reason in names), "use cpu:2 for two stand-in devices.")
    if used:
        left_out = ", ".join(gpu.name for gpu in missing)
        what = f"Only {', '.join(used)} will be used, not {left_out}."
        return Problem(code="DEV-021", what=what, why=why, fix=fix)
    return Problem(
        code="DEV-020",
        what="No GPU will be used: everything runs on cpu:0.",
        why=why or "there is no GPU.",
        fix=fix,
    )


# The table.

_UNKNOWN = "-"
_WIDE = 80


def print_inventory(found: Inventory, console: Console | None = None) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from evener.base.terminal import standard_output

    console = standard_output() if console is None else console
    cuda = f" for CUDA {found.cuda_version}" if found.cuda_version else " without CUDA"
    versions = [f"TensorFlow {found.tensorflow_version}{cuda}"]
    if found.driver_version:
        versions.append(f"NVIDIA driver {found.driver_version}")
    if found.cuda_driver_version:
        versions.append("which supports CUDA {}.{}".format(*found.cuda_driver_version))
    console.print(Text(", ".join(versions)), soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("device", no_wrap=True)
    table.add_column("name", overflow="fold")
    # Names and memory come first where not all columns have room.
    is_wide = console.width >= _WIDE
    has_links = bool(found.links) and is_wide
    if is_wide:
        table.add_column("compute", no_wrap=True)
    table.add_column("free / total", no_wrap=True)
    if has_links:
        table.add_column("links")
    # A reason is a sentence, which may take several lines.
    has_reasons = any(device.reason is not None for device in found.devices)
    table.add_column("used", no_wrap=is_wide and not has_reasons)
    for device in found.devices:
        compute = _UNKNOWN
        if device.num_cores is not None:
            compute = f"{device.num_cores} cores"
        elif device.compute_capability is not None:
            compute = "{}.{}".format(*device.compute_capability)
        sizes = (device.memory_free_bytes, device.memory_total_bytes)
        memory = " / ".join(_UNKNOWN if size is None else format_bytes(size) for size in sizes)
        cells = [device.name, device.product or _UNKNOWN, *([compute] if is_wide else []), memory]
        # The links to the other GPUs, grouped by kind.
        others: dict[str, list[str]] = {}
        for link in found.links:
            if device.name in link.devices:
                first, second = link.devices
                others.setdefault(str(link), []).append(second if first == device.name else first)
        lines = [f"{kind}: {', '.join(names)}" for kind, names in others.items()]
        # Up to two GPUs at the other end of equal links are listed by name.
        if len(others) == 1 and sum(map(len, others.values())) > 2:
            lines = [f"{next(iter(others))}: all"]
        if has_links:
            cells.append("\n".join(lines))
        caps = " + ".join(format_bytes(cap) for cap in device.caps_bytes)
        use = f"yes, up to {caps}" if caps else "yes"
        if device.use == "host":
            use = "for input pipelines"
        elif device.kind == "cpu" and (found.spec.startswith("cpu:") or len(found.used) > 1):
            use = "yes, as a stand-in"
        elif device.reason is not None:
            use = f"no: {device.reason.what}"
        table.add_row(*map(Text, (*cells, use)))
    console.print(table)
    reasons = (device.reason for device in found.devices)
    for problem in dict.fromkeys((*found.problems, *reasons)):
        if problem is not None and problem.code != "DEV-113":
            console.print(Text(f"\n{problem}"), soft_wrap=True)
    used = ", ".join(device.name for device in found.used)
    console.print(Text(f"\nUsed with {found.spec}: {used}"), soft_wrap=True)
