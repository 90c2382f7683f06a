"""The layout of TensorFlow's runtime: its logical devices and their names.

TensorFlow renumbers logical devices: GPUs in the order of their physical numbers, and each part
of a split GPU counts. With the spec ``gpu:2@10GiB,gpu:2@5GiB,gpu:0``:

    physical   gpu:0    gpu:1 (hidden)    gpu:2@10GiB    gpu:2@5GiB
    logical    gpu:0                      gpu:1          gpu:2

The devices are returned in the order of the spec, so that shares keep their order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from evener.devices.fields import DeviceKind
from evener.devices.inventory import Inventory
from evener.devices.spec import DeviceSpec, GpuRequest
from evener.devices.tensorflow_view import TensorFlowView

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
    """The logical devices with which TensorFlow's runtime starts.

    Args:
        gpus: The logical GPUs; empty for the CPU alone.
        num_cpus: Number of logical CPU devices.
        cpu_caps: Bytes of memory that a planner assumes for each CPU device; empty for no limit.
        limit_threads: Whether every CPU device computes with one thread, as stand-ins do.
    """

    gpus: tuple[GpuRequest, ...] = ()
    num_cpus: int = 1
    cpu_caps: tuple[int, ...] = ()
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
