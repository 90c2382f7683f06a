"""`use_devices`: configures and starts TensorFlow's runtime on the devices of a spec."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from evener.devices import problem
from evener.devices.fallback import fallback_of
from evener.devices.fields import Device
from evener.devices.host import read_host
from evener.devices.inventory import Inventory
from evener.devices.join import join, unknown_device
from evener.devices.layout import (
    Layout,
    UsedDevice,
    layout_of,
    running_devices,
    select_devices,
    smaller_layouts,
)
from evener.devices.nvml import Nvml, NvmlReader
from evener.devices.problem import Problem
from evener.devices.runtime import InitialiseError, Runtime, TensorFlowRuntime
from evener.devices.spec import (
    MAX_STAND_INS,
    DeviceSpec,
    duplicate_device,
    no_device_named,
    not_a_device,
    parse_spec,
    spec_from,
    suggestion,
)
from evener.errors import DeviceError, warn

# TensorFlow has one runtime per process.
_RUNTIME = TensorFlowRuntime()
_NAME = re.compile(r"(gpu|cpu):(0|[1-9][0-9]{0,5})")


def use_devices(spec: str | None = None, *, memory_growth: bool = True) -> tuple[UsedDevice, ...]:
    """Configure TensorFlow for the devices of a spec, and start its runtime on them.

    Call it at the start of the program: TensorFlow fixes its devices when it runs its first
    operation. A later call for devices that the runtime has returns them again.

    Args:
        spec: The device spec: ``"all"``, ``"gpu:0,gpu:1@10GiB"``, ``"cpu:2"`` for two
            stand-ins. None: the environment's ``EVENER_DEVICES``; without it the devices of a
            runtime that has started already, else ``all``.
        memory_growth: Whether TensorFlow allocates GPU memory as needed, instead of nearly all at
            once. It cannot change once the runtime has started.

    Returns:
        The devices, in the order of the spec.

    Raises:
        DeviceError: DEV-001 to DEV-007 if the spec cannot be read, DEV-010 if it names a GPU
            that is not there, DEV-011 if a cap is above the GPU's memory, DEV-012 if
            TensorFlow starts on no device, DEV-013 if it runs with other devices already,
            DEV-014 if it refuses the setting.

    Warns:
        EvenerWarning: DEV-020 if no GPU can be used, DEV-021 if not all can.

    Example:
        ``devices = evener.use_devices("gpu:0,gpu:1@10GiB")``
    """
    parsed = spec_from(spec, os.environ)
    used, fallback = take(parsed, nvml=Nvml(), runtime=_RUNTIME, memory_growth=memory_growth)
    if fallback is not None:
        warn(fallback.code, fallback.what, why=fallback.why, fix=fallback.fix)
    return used


def lay_out(spec: str) -> None:
    """Configure TensorFlow for the devices of a spec, without starting its runtime.

    The program that runs afterwards in this process can still change the configuration.

    Args:
        spec: Device spec, as for `use_devices`.

    Raises:
        DeviceError: DEV-001 to DEV-007, DEV-010, DEV-011 and DEV-014, as for `use_devices`.
    """
    parsed = parse_spec(spec)
    found = join(parsed, Nvml().read_machine(), _RUNTIME.view(), read_host())
    _RUNTIME.configure(layout_of(parsed, found), memory_growth=True)


def resolve_devices(names: Sequence[str]) -> tuple[UsedDevice, ...]:
    """Return the devices of these names, and start TensorFlow's runtime if it has not started.

    Names are those of TensorFlow's logical devices, in lower case; ``"cpu:2"`` is the third
    logical CPU here, not a number of stand-ins. If the runtime has not been configured and only
    CPUs are named, the stand-ins that the names need are made.

    Args:
        names: Device names, for example ``["gpu:0", "gpu:1"]`` or ``["cpu:0", "cpu:2"]``.

    Returns:
        The devices, in the order of the names.

    Raises:
        DeviceError: DEV-001 if there is no name, DEV-002 if one is not a device name, DEV-005
            if one comes twice, DEV-010 if a device is not there; and what `use_devices` raises.
    """
    return resolve(names, os.environ, nvml=Nvml(), runtime=_RUNTIME)


def take(
    spec: DeviceSpec, *, nvml: NvmlReader, runtime: Runtime, memory_growth: bool = True
) -> tuple[tuple[UsedDevice, ...], Problem | None]:
    """Implement `use_devices` on any runtime; return the devices, and why there are fewer."""
    view = runtime.view()
    found = join(spec, nvml.read_machine(), view, read_host())
    layout = layout_of(spec, found)
    if view.runtime_initialised:
        layout = runtime.fallback_layouts.get(layout, layout)
        used = select_devices(layout, view, found)
        if used is None:
            running = ", ".join(device.name for device in running_devices(view, found))
            raise _other_layout(spec, running)
        return used, found.fallback
    started, failure = _start(layout, runtime, memory_growth=memory_growth)
    if failure is not None:
        runtime.fallback_layouts[layout] = started
        found = _without(found, started, failure)
    used = select_devices(started, runtime.view(), found)
    if used is None:
        raise RuntimeError(f"TensorFlow started on other devices than {started}")
    return used, found.fallback


def resolve(
    names: Sequence[str], environ: Mapping[str, str], *, nvml: NvmlReader, runtime: Runtime
) -> tuple[UsedDevice, ...]:
    """Implement `resolve_devices` on any runtime."""
    names = _listed(names)
    _check_names(names)
    view = runtime.view()
    machine = nvml.read_machine()
    if not view.runtime_initialised:
        take(_spec_for(names, environ, view.num_logical_cpus), nvml=nvml, runtime=runtime)
        view = runtime.view()
    found = join(DeviceSpec(kind="all", source="default"), machine, view, read_host())
    known = {device.name: device for device in running_devices(view, found)}
    for name in names:
        if name not in known:
            raise unknown_device(name, known, found.fallback)
    return tuple(known[name] for name in names)


def _start(
    layout: Layout, runtime: Runtime, *, memory_growth: bool
) -> tuple[Layout, Problem | None]:
    """Start on a layout, or on fewer devices; return the problem of the full layout too."""
    message = None
    for attempt in (layout, *smaller_layouts(layout)):
        runtime.configure(attempt, memory_growth=memory_growth)
        try:
            runtime.initialise()
        except InitialiseError as error:
            message = message or str(error) or "nothing"
            continue
        failed = None if message is None else problem.initialising_failed(str(layout), message)
        return attempt, failed
    raise DeviceError(
        "DEV-012",
        "TensorFlow could not be started on any device.",
        why=f"on {layout} TensorFlow says: {message}",
        fix="run the program with TF_CPP_MIN_LOG_LEVEL=0 to see TensorFlow's full log.",
    )


def _without(found: Inventory, started: Layout, failure: Problem) -> Inventory:
    """Return the inventory with the devices left out on which TensorFlow did not start."""
    kept = {request.name for request in started.gpus}
    tried = {device.name for device in found.used if device.kind == "gpu"}

    def updated(device: Device) -> Device:
        if device.name in tried - kept:
            return replace(device, use="none", reason=failure)
        if device.kind == "cpu" and not kept:
            return replace(device, use="compute")
        return device

    devices = tuple(map(updated, found.devices))
    # A GPU that is split into fewer devices is in both sets: no device is left out.
    fallback = fallback_of(devices, found.problems) or failure
    return replace(found, devices=devices, fallback=fallback)


def _spec_for(
    names: Sequence[str], environ: Mapping[str, str], num_logical_cpus: int
) -> DeviceSpec:
    spec = spec_from(None, environ)
    if spec.source != "default" or not all(name.startswith("cpu:") for name in names):
        return spec
    needed = max(int(name.partition(":")[2]) for name in names) + 1
    if num_logical_cpus >= needed or needed > MAX_STAND_INS:
        return spec
    return DeviceSpec(kind="cpu", num_stand_ins=needed)


def _listed(names: object) -> tuple[str, ...]:
    """Return the names of a list; they are checked by `_check_names`.

    Raises:
        SpecError: DEV-002 if it is no list.
    """
    if isinstance(names, Iterable) and not isinstance(names, str | bytes):
        return tuple(names)
    count = names if isinstance(names, int) and 1 <= names <= MAX_STAND_INS else 2
    raise not_a_device(
        f"{names!r} is neither a device spec nor a list of devices.",
        why=f"it is of type {type(names).__name__}; devices are named, not counted.",
        fix=f"write 'cpu:{count}' for {count} stand-ins, or for example ['gpu:0', 'gpu:1'].",
    )


def _check_names(names: Sequence[object]) -> None:
    if not names:
        raise no_device_named(
            "The list of devices is empty",
            why="a plan needs at least one device to compute on.",
            fix="name devices, for example ['gpu:0', 'gpu:1'], or use 'all'.",
        )
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            close = suggestion(str(name), ("gpu:0", "cpu:0"))
            raise not_a_device(
                f"{name!r} is not a device.{close}",
                why="in a list, devices are written gpu:NUMBER or cpu:NUMBER, in lower case, "
                "without a cap.",
                fix="write for example ['cpu:0', 'cpu:1']; for memory caps and stand-ins pass a "
                "device spec as one string: 'gpu:0@10GiB' or 'cpu:2'.",
            )
        if names.count(name) > 1:
            raise duplicate_device(
                f"The list of devices names {name} {names.count(name)} times",
                why="each device can be used once; a larger share gives it more work.",
                fix="list each device once; shares=[2, 1] gives the first twice as much work.",
            )


def _other_layout(spec: DeviceSpec, running: str) -> DeviceError:
    return DeviceError(
        "DEV-013",
        f"TensorFlow is already running with other devices than {spec}.",
        why=f"its runtime started with {running}, and TensorFlow fixes its devices when it "
        "runs its first operation.",
        fix=f"call evener.use_devices({str(spec)!r}) at the start of the program, before any "
        "tensor or model is created, or use the devices that are running.",
    )
