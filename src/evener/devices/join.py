"""Joins the views of the driver, TensorFlow and the host into an inventory: a pure function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from evener.devices import problem
from evener.devices.fallback import fallback_of
from evener.devices.fields import Device, Link
from evener.devices.host import Host
from evener.devices.inventory import Inventory
from evener.devices.match import match_gpus
from evener.devices.nvml import NvmlGpu, NvmlMachine
from evener.devices.problem import Problem
from evener.devices.reasons import (
    DEFAULT_MIN_FREE_BYTES,
    Situation,
    why_cuda_13,
    why_not_listed,
    why_not_used,
    why_old_driver,
)
from evener.devices.spec import DeviceSpec, SpecError
from evener.devices.tensorflow_view import TensorFlowGpu, TensorFlowView
from evener.errors import did_you_mean
from evener.units import format_bytes


def join(
    spec: DeviceSpec,
    machine: NvmlMachine,
    view: TensorFlowView,
    host: Host,
    *,
    min_free_bytes: int = DEFAULT_MIN_FREE_BYTES,
) -> Inventory:
    """Return the inventory of a machine under a device spec.

    Args:
        spec: Devices to use. With the default spec, several logical CPUs and no GPU mean that the
            program has configured stand-ins, which are used.
        machine: The view of the driver.
        view: The view of TensorFlow.
        host: The host.
        min_free_bytes: The free memory below which a GPU is not used.

    Raises:
        SpecError: DEV-010 if the spec names a GPU that TensorFlow does not see, DEV-011 if
            its caps are above the GPU's memory.
    """
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
        reason = problem.not_in_spec(str(spec))
    elif spec.kind == "all" and not gpu.visible:
        reason = problem.hidden_in_tensorflow()
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
        kinds = {"no_driver": problem.no_driver, "driver_mismatch": problem.driver_mismatch}
        found.append(kinds.get(machine.failure.kind, problem.unreadable)(machine.failure.message))
    elif not machine.gpus and not view.gpus:
        found.append(problem.no_gpu())
    has_driver = machine.failure is None or machine.failure.kind != "no_driver"
    if not view.built_with_cuda and has_driver:
        found.append(problem.cpu_only_wheel(view.version))
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
    """Return the error for a device that does not exist.

    Args:
        name: The requested device.
        known: The existing devices.
        no_gpus: Reason for which there are no GPUs, or None.
    """
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
