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
from typing import Any

from evener.devices.inventories import (
    Inventory,
    MachineDevice,
    explain_fallback,
    join,
    unknown_device,
)
from evener.devices.machine import Nvml, NvmlMachine, TensorFlowView, read_host, read_tensorflow
from evener.devices.names import KindName
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

_MEBIBYTE = 2**20
_NAME = re.compile(r"(gpu|cpu):(0|[1-9][0-9]{0,5})")


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
    kind: KindName
    memory_bytes: int | None
    physical: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeLayout:
    """The logical devices with which TensorFlow's runtime starts."""

    gpus: tuple[GpuRequest, ...] = ()  # empty for the CPU alone
    num_cpus: int = 1
    cpu_caps: tuple[int, ...] = ()  # bytes that a planner assumes for each; empty for no limit
    limit_threads: bool = False  # whether every CPU device computes with one thread: stand-ins

    def __str__(self) -> str:
        if self.gpus:
            return ", ".join(map(str, self.gpus))
        return ", ".join(f"cpu:{index}" for index in range(self.num_cpus))


class InitialiseError(Exception):
    """TensorFlow cannot start on a layout; it may start on another one."""


class TensorFlowRuntime:
    """TensorFlow's runtime, which can be configured and started once in a process."""

    def __init__(self) -> None:
        # For each layout on which starting failed, the layout that was started instead.
        self.fallback_layouts: dict[RuntimeLayout, RuntimeLayout] = {}

    def view(self) -> TensorFlowView:
        return read_tensorflow()

    def configure(self, layout: RuntimeLayout, *, memory_growth: bool) -> None:
        """Prepare a layout; may be called again until `initialise` succeeds."""
        try:
            _configure(layout, memory_growth=memory_growth)
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


def _configure(layout: RuntimeLayout, *, memory_growth: bool) -> None:
    import tensorflow as tf

    config: Any = tf.config
    gpus = config.list_physical_devices("GPU")
    caps: dict[int, list[int]] = {}
    for request in layout.gpus:
        own = caps.setdefault(request.index, [])
        own += [] if request.cap_bytes is None else [request.cap_bytes // _MEBIBYTE]
    config.set_visible_devices([gpus[index] for index in sorted(caps)], "GPU")
    for index, own in caps.items():
        if own:
            logical = [config.LogicalDeviceConfiguration(memory_limit=cap) for cap in own]
            config.set_logical_device_configuration(gpus[index], logical)
        elif not any(caps.values()):
            # It must be the same on all GPUs.
            config.experimental.set_memory_growth(gpus[index], memory_growth)
    if any(caps.values()) and memory_growth:
        # If any GPU has a memory cap, TensorFlow disables memory growth on all of them. The
        # environment variable still works, and a value that is set already is kept.
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

    cpu = config.list_physical_devices("CPU")[0]
    if len(config.get_logical_device_configuration(cpu) or (None,)) < layout.num_cpus:
        logical = [config.LogicalDeviceConfiguration() for _ in range(layout.num_cpus)]
        config.set_logical_device_configuration(cpu, logical)
    if layout.limit_threads:
        threading = config.threading
        # 0 is TensorFlow's default: the program has chosen no number.
        if threading.get_intra_op_parallelism_threads() == 0:
            threading.set_intra_op_parallelism_threads(1)
        if threading.get_inter_op_parallelism_threads() == 0:
            threading.set_inter_op_parallelism_threads(max(2, layout.num_cpus))


# TensorFlow has one runtime per process.
_RUNTIME = TensorFlowRuntime()


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
    used, fallback = take(
        spec_from(spec, os.environ),
        machine=Nvml().read_machine(),
        runtime=_RUNTIME,
        memory_growth=memory_growth,
    )
    if fallback is not None:
        warn(fallback.code, fallback.what, why=fallback.why, fix=fallback.fix)
    return used


def take(
    spec: DeviceSpec,
    *,
    machine: NvmlMachine,
    runtime: TensorFlowRuntime,
    memory_growth: bool = True,
) -> tuple[tuple[UsedDevice, ...], Problem | None]:
    """Implement `use_devices` on any runtime; return the devices, and why there are fewer."""
    view = runtime.view()
    found = join(spec, machine, view, read_host())
    layout = choose_layout(spec, found)
    if view.runtime_initialised:
        layout = runtime.fallback_layouts.get(layout, layout)
        used = select_devices(layout, view, found)
        if used is None:
            running = ", ".join(device.name for device in running_devices(view, found))
            raise DeviceError(
                "DEV-013",
                f"TensorFlow is already running with other devices than {spec}.",
                why=f"its runtime started with {running}, and TensorFlow fixes its devices when it "
                "runs its first operation.",
                fix=f"call evener.use_devices({str(spec)!r}) at the start of the program, before "
                "any tensor or model is created, or use the devices that are running.",
            )
        return used, found.fallback
    started, failure = _start(layout, runtime, memory_growth=memory_growth)
    if failure is not None:
        runtime.fallback_layouts[layout] = started
        # The inventory without the devices on which TensorFlow did not start.
        kept = {request.name for request in started.gpus}
        devices: list[MachineDevice] = []
        for device in found.devices:
            if device.kind == "gpu" and device.use == "compute" and device.name not in kept:
                device = replace(device, use="none", reason=failure)
            elif device.kind == "cpu" and not kept:
                device = replace(device, use="compute")
            devices.append(device)
        # A GPU that is split into fewer devices is kept: then no device is left out.
        fallback = explain_fallback(devices, found.problems) or failure
        found = replace(found, devices=tuple(devices), fallback=fallback)
    used = select_devices(started, runtime.view(), found)
    if used is None:
        raise RuntimeError(f"TensorFlow started on other devices than {started}")
    return used, found.fallback


def lay_out(spec: str) -> None:
    """Configure TensorFlow for the devices of a spec, without starting its runtime.

    The program that runs afterwards in this process can still change the configuration.
    """
    parsed = parse_spec(spec)
    found = join(parsed, Nvml().read_machine(), _RUNTIME.view(), read_host())
    _RUNTIME.configure(choose_layout(parsed, found), memory_growth=True)


def choose_layout(spec: DeviceSpec, found: Inventory) -> RuntimeLayout:
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
        return RuntimeLayout(gpus=gpus)
    return RuntimeLayout(
        num_cpus=len(used), cpu_caps=spec.stand_in_caps, limit_threads=spec.kind == "cpu"
    )


def _start(
    layout: RuntimeLayout, runtime: TensorFlowRuntime, *, memory_growth: bool
) -> tuple[RuntimeLayout, Problem | None]:
    """Start on a layout, or on fewer devices; return the problem of the full layout too."""
    failure = None
    message = ""
    for attempt in (layout, *smaller_layouts(layout)):
        runtime.configure(attempt, memory_growth=memory_growth)
        try:
            runtime.initialise()
        except InitialiseError as error:
            if failure is None:
                message = str(error) or "nothing"
                failure = Problem(
                    code="DEV-109",
                    what=f"TensorFlow could not be started on {layout}.",
                    # The message may have many lines; one is printed.
                    why=f"TensorFlow says: {' '.join(message.split())[:400]}",
                    fix="check `nvidia-smi` for a GPU that hangs or has no free memory, or choose "
                    "other devices, for example EVENER_DEVICES=gpu:0.",
                )
        else:
            return attempt, failure
    raise DeviceError(
        "DEV-012",
        "TensorFlow could not be started on any device.",
        why=f"on {layout} TensorFlow says: {message}",
        fix="run the program with TF_CPP_MIN_LOG_LEVEL=0 to see TensorFlow's full log.",
    )


def smaller_layouts(layout: RuntimeLayout) -> Iterator[RuntimeLayout]:
    """Yield the layouts to try if TensorFlow does not start on one, the most devices first.

    A single device may be the cause, so each is left out in turn; then each is tried alone; the
    CPU is last.

    >>> full = RuntimeLayout(gpus=tuple(GpuRequest(index=i) for i in range(3)))
    >>> [str(layout) for layout in smaller_layouts(full)]
    ['gpu:0, gpu:1', 'gpu:0, gpu:2', 'gpu:1, gpu:2', 'gpu:0', 'gpu:1', 'gpu:2', 'cpu:0']
    """
    num_gpus = len(layout.gpus)
    for size in dict.fromkeys((num_gpus - 1, 1)):
        if 0 < size < num_gpus:
            for gpus in itertools.combinations(layout.gpus, size):
                yield RuntimeLayout(gpus=gpus)
    if num_gpus:
        yield RuntimeLayout()


def running_devices(view: TensorFlowView, found: Inventory) -> tuple[UsedDevice, ...]:
    """Return every logical device that a runtime has, or will have as it is configured now."""
    totals = {device.name: device.memory_total_bytes for device in found.devices}
    gpus = [
        UsedDevice(
            name=f"gpu:{number}",
            kind="gpu",
            memory_bytes=totals.get(physical) if cap is None else cap,
            physical=physical,
        )
        for number, (physical, cap) in enumerate(_logical_gpus(view))
    ]
    cpus = [
        UsedDevice(name=f"cpu:{index}", kind="cpu", memory_bytes=None, physical="cpu:0")
        for index in range(view.num_logical_cpus)
    ]
    return (*gpus, *cpus)


def _logical_gpus(view: TensorFlowView) -> list[tuple[str, int | None]]:
    """Return the physical name and the cap of each logical GPU."""
    visible = [gpu for gpu in view.gpus if gpu.visible]
    return [(f"gpu:{gpu.index}", cap) for gpu in visible for cap in (gpu.caps_bytes or (None,))]


def select_devices(
    layout: RuntimeLayout, view: TensorFlowView, found: Inventory
) -> tuple[UsedDevice, ...] | None:
    """Return a layout's devices out of those of a runtime, or None if it lacks one of them."""
    running = running_devices(view, found)
    logical = [(name, cap and cap // _MEBIBYTE) for name, cap in _logical_gpus(view)]
    if not layout.gpus:
        cpus = running[len(logical) :][: layout.num_cpus]
        if len(cpus) < layout.num_cpus:
            return None
        caps = layout.cpu_caps or (None,) * layout.num_cpus
        return tuple(replace(cpu, memory_bytes=cap) for cpu, cap in zip(cpus, caps, strict=True))
    picked: list[int] = []
    for request in layout.gpus:
        wanted = (request.name, request.cap_bytes and request.cap_bytes // _MEBIBYTE)
        left = [k for k, gpu in enumerate(logical) if gpu == wanted and k not in picked]
        if not left:
            return None
        picked.append(left[0])
    return tuple(running[k] for k in picked)


def resolve_devices(names: Sequence[str]) -> tuple[UsedDevice, ...]:
    """Return devices by TensorFlow's names in lower case; start its runtime if needed."""
    return resolve(names, os.environ, machine=Nvml().read_machine(), runtime=_RUNTIME)


def resolve(
    names: Sequence[str],
    environ: Mapping[str, str],
    *,
    machine: NvmlMachine,
    runtime: TensorFlowRuntime,
) -> tuple[UsedDevice, ...]:
    """Implement `resolve_devices` on any runtime."""
    names = _check_names(names)
    view = runtime.view()
    if not view.runtime_initialised:
        spec = spec_from(None, environ)
        if spec.source == "default" and all(name.startswith("cpu:") for name in names):
            needed = max(int(name.partition(":")[2]) for name in names) + 1
            if view.num_logical_cpus < needed <= MAX_STAND_INS:
                spec = DeviceSpec(kind="cpu", num_stand_ins=needed)
        take(spec, machine=machine, runtime=runtime)
        view = runtime.view()
    found = join(DeviceSpec(kind="all", source="default"), machine, view, read_host())
    known = {device.name: device for device in running_devices(view, found)}
    for name in names:
        if name not in known:
            raise unknown_device(name, known, found.fallback)
    return tuple(known[name] for name in names)


def _check_names(given: object) -> tuple[str, ...]:
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        count = given if isinstance(given, int) and 1 <= given <= MAX_STAND_INS else 2
        raise not_a_device(
            f"{given!r} is neither a device spec nor a list of devices.",
            why=f"it is of type {type(given).__name__}; devices are named, not counted.",
            fix=f"write 'cpu:{count}' for {count} stand-ins, or for example ['gpu:0', 'gpu:1'].",
        )
    names: tuple[Any, ...] = tuple(given)
    if not names:
        raise no_device_named(
            "The list of devices is empty",
            why="a plan needs at least one device to compute on.",
            fix="name devices, for example ['gpu:0', 'gpu:1'], or use 'all'.",
        )
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise not_a_device(
                f"{name!r} is not a device.{suggestion(str(name), ('gpu:0', 'cpu:0'))}",
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
    return names
