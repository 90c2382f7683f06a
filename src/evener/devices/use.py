"""`use_devices`: the layout of logical devices, and the start of TensorFlow's runtime on it.

TensorFlow renumbers logical devices: GPUs in the order of their physical numbers, and each part
of a split GPU counts. With the spec ``gpu:2@10GiB,gpu:2@5GiB,gpu:0``:

    physical   gpu:0    gpu:1 (hidden)    gpu:2@10GiB    gpu:2@5GiB
    logical    gpu:0                      gpu:1          gpu:2

The devices are returned in the order of the spec, so that shares keep their order.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from evener.devices import reasons
from evener.devices.inventory import (
    Device,
    DeviceKind,
    Inventory,
    fallback_of,
    join,
    unknown_device,
)
from evener.devices.machine import Nvml, NvmlReader, TensorFlowView, read_host, read_tensorflow
from evener.devices.reasons import Problem
from evener.devices.spec import (
    MAX_STAND_INS,
    DeviceSpec,
    GpuRequest,
    duplicate_device,
    no_device_named,
    not_a_device,
    parse_spec,
    spec_from,
    suggestion,
)
from evener.errors import DeviceError, warn

# The layout of TensorFlow's runtime: its logical devices and their names.
#
# TensorFlow renumbers logical devices: GPUs in the order of their physical numbers, and each part
# of a split GPU counts. With the spec ``gpu:2@10GiB,gpu:2@5GiB,gpu:0``:
#
#     physical   gpu:0    gpu:1 (hidden)    gpu:2@10GiB    gpu:2@5GiB
#     logical    gpu:0                      gpu:1          gpu:2
#
# The devices are returned in the order of the spec, so that shares keep their order.

_MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedDevice:
    """A device that takes part in training.

    Args:
        name: TensorFlow's logical name in lower case, such as ``"gpu:0"``.
        kind: ``"gpu"`` or ``"cpu"``.
        memory_bytes: The cap on its memory, or all the memory of a GPU; None where there is
            neither, as for the CPU and stand-ins without a cap, which share the host's memory.
        physical: The name of the physical device behind it, as a device spec writes it.

    >>> UsedDevice(name="gpu:0", kind="gpu", memory_bytes=2**30, physical="gpu:1").name
    'gpu:0'
    """

    name: str
    kind: DeviceKind
    memory_bytes: int | None
    physical: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The logical devices with which TensorFlow's runtime starts."""

    gpus: tuple[GpuRequest, ...] = ()  # The logical GPUs; empty for the CPU alone
    num_cpus: int = 1  # Number of logical CPU devices
    # Bytes of memory that a planner assumes for each CPU device; empty for no limit
    cpu_caps: tuple[int, ...] = ()
    # Whether every CPU device computes with one thread, as stand-ins do
    limit_threads: bool = False

    def __str__(self) -> str:
        """Return the layout as a device spec would write it."""
        if self.gpus:
            return ", ".join(map(str, self.gpus))
        return ", ".join(f"cpu:{index}" for index in range(self.num_cpus))


def layout_of(spec: DeviceSpec, found: Inventory) -> Layout:
    """Return the layout for the devices that the inventory says are used."""
    used = {device.name: device for device in found.used}
    if spec.kind == "gpu":
        gpus = tuple(request for request in spec.gpus if request.name in used)
    else:
        # A GPU that the program itself has split stays split.
        gpus = tuple(
            GpuRequest(index=int(device.name.partition(":")[2]), cap_bytes=cap)
            for device in used.values()
            if device.kind == "gpu"
            for cap in (device.caps_bytes or (None,))
        )
    if gpus:
        return Layout(gpus=gpus)
    return Layout(num_cpus=len(used), cpu_caps=spec.stand_in_caps, limit_threads=spec.kind == "cpu")


def smaller_layouts(layout: Layout) -> Iterator[Layout]:
    """Yield the layouts to try if TensorFlow does not start on one, the most devices first.

    A single device may be the cause, so each is left out in turn; then each is tried alone; the
    CPU is last.

    >>> full = Layout(gpus=tuple(GpuRequest(index=i) for i in range(3)))
    >>> [str(layout) for layout in smaller_layouts(full)]
    ['gpu:0, gpu:1', 'gpu:0, gpu:2', 'gpu:1, gpu:2', 'gpu:0', 'gpu:1', 'gpu:2', 'cpu:0']
    """
    num_gpus = len(layout.gpus)
    for size in dict.fromkeys((num_gpus - 1, 1)):
        if 0 < size < num_gpus:
            for gpus in itertools.combinations(layout.gpus, size):
                yield Layout(gpus=gpus)
    if num_gpus:
        yield Layout()


def running_devices(view: TensorFlowView, found: Inventory) -> tuple[UsedDevice, ...]:
    """Return every logical device that a runtime has, or will have as it is configured now."""
    totals = {device.name: device.memory_total_bytes for device in found.devices}
    number = itertools.count()
    gpus = [
        UsedDevice(
            name=f"gpu:{next(number)}",
            kind="gpu",
            memory_bytes=totals.get(f"gpu:{gpu.index}") if cap is None else cap,
            physical=f"gpu:{gpu.index}",
        )
        for gpu in view.gpus
        if gpu.visible
        for cap in (gpu.caps_bytes or (None,))
    ]
    cpus = [
        UsedDevice(name=f"cpu:{index}", kind="cpu", memory_bytes=None, physical="cpu:0")
        for index in range(view.num_logical_cpus)
    ]
    return (*gpus, *cpus)


def select_devices(
    layout: Layout, view: TensorFlowView, found: Inventory
) -> tuple[UsedDevice, ...] | None:
    """Return a layout's devices out of those of a runtime, or None if it lacks one of them."""
    running = running_devices(view, found)
    if not layout.gpus:
        cpus = tuple(device for device in running if device.kind == "cpu")[: layout.num_cpus]
        if len(cpus) < layout.num_cpus:
            return None
        caps = layout.cpu_caps or (None,) * layout.num_cpus
        return tuple(replace(cpu, memory_bytes=cap) for cpu, cap in zip(cpus, caps, strict=True))
    gpu_caps = [cap for gpu in view.gpus if gpu.visible for cap in (gpu.caps_bytes or (None,))]
    left = [(device, _mebibytes(cap)) for device, cap in zip(running, gpu_caps, strict=False)]
    picked: list[UsedDevice] = []
    for request in layout.gpus:
        wanted = (request.name, _mebibytes(request.cap_bytes))
        entry = next((e for e in left if (e[0].physical, e[1]) == wanted), None)
        if entry is None:
            return None
        left.remove(entry)
        picked.append(entry[0])
    return tuple(picked)


def _mebibytes(num_bytes: int | None) -> int | None:
    return None if num_bytes is None else num_bytes // _MEBIBYTE


# Configuration and start of TensorFlow's runtime on a layout of devices.
#
# Visible GPUs, memory caps and growth, logical CPU devices and their threads. `use_devices` gets a
# `Runtime`, so that tests need no GPU.

_FORCE_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


class InitialiseError(Exception):
    """TensorFlow cannot start on a layout; it may start on another one."""


class Runtime(Protocol):
    """A runtime that can be configured and started, once."""

    fallback_layouts: dict[Layout, Layout]
    """For each layout on which starting failed, the layout that was started instead."""

    def view(self) -> TensorFlowView:
        """Return the current view of TensorFlow."""
        ...

    def configure(self, layout: Layout, *, memory_growth: bool) -> None:
        """Prepare a layout; may be called again until `initialise` succeeds."""
        ...

    def initialise(self) -> None:
        """Start the runtime, or raise `InitialiseError` and leave it not started."""
        ...


class TensorFlowRuntime:
    """Runtime of this process."""

    def __init__(self) -> None:
        self.fallback_layouts: dict[Layout, Layout] = {}

    def view(self) -> TensorFlowView:
        """Return the current view of TensorFlow."""
        return read_tensorflow()

    def configure(self, layout: Layout, *, memory_growth: bool) -> None:
        """Prepare a layout; may be called again until `initialise` succeeds."""
        import tensorflow as tf

        try:
            _show_gpus(tf, layout)
            _limit_memory(tf, layout, memory_growth=memory_growth)
            _split_cpu(tf, layout)
        except (ValueError, RuntimeError) as error:
            raise DeviceError(
                "DEV-014",
                f"TensorFlow cannot be configured for {layout}.",
                why=f"TensorFlow says: {error}",
                fix="remove other calls of tf.config from the program (memory growth, logical "
                "devices); evener.use_devices makes these settings.",
            ) from error

    def initialise(self) -> None:
        """Start the runtime, or raise `InitialiseError` and leave it not started."""
        import tensorflow as tf

        try:
            tf.config.list_logical_devices()
        except (RuntimeError, ValueError, tf.errors.OpError) as error:
            raise InitialiseError(str(error)) from error


def _show_gpus(tf: Any, layout: Layout) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    wanted = {request.index for request in layout.gpus}
    tf.config.set_visible_devices([gpus[index] for index in sorted(wanted)], "GPU")


def _limit_memory(tf: Any, layout: Layout, *, memory_growth: bool) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    capped = any(request.cap_bytes is not None for request in layout.gpus)
    for index in {request.index for request in layout.gpus}:
        caps = [r.cap_bytes for r in layout.gpus if r.index == index and r.cap_bytes is not None]
        if caps:
            logical = [
                tf.config.LogicalDeviceConfiguration(memory_limit=c // _MEBIBYTE) for c in caps
            ]
            tf.config.set_logical_device_configuration(gpus[index], logical)
        elif not capped:
            # It must be the same on all GPUs.
            tf.config.experimental.set_memory_growth(gpus[index], memory_growth)
    if capped and memory_growth:
        # If any GPU has a memory cap, TensorFlow disables memory growth on all of them. The
        # environment variable still works, and a value that is set already is kept.
        os.environ.setdefault(_FORCE_GROWTH, "true")


def _split_cpu(tf: Any, layout: Layout) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    made = len(tf.config.get_logical_device_configuration(cpu) or (None,))
    if made < layout.num_cpus:
        logical = [tf.config.LogicalDeviceConfiguration() for _ in range(layout.num_cpus)]
        tf.config.set_logical_device_configuration(cpu, logical)
    if not layout.limit_threads:
        return
    threading = tf.config.threading
    # 0 is TensorFlow's default: the program has chosen no number.
    if threading.get_intra_op_parallelism_threads() == 0:
        threading.set_intra_op_parallelism_threads(1)
    if threading.get_inter_op_parallelism_threads() == 0:
        threading.set_inter_op_parallelism_threads(max(2, layout.num_cpus))


# `use_devices`: configures and starts TensorFlow's runtime on the devices of a spec.

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
        failed = None if message is None else reasons.initialising_failed(str(layout), message)
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
    """Return the names of a list; they are checked by `_check_names`."""
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
