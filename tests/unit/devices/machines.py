"""Machines as they were, or would be, recorded: what the driver and TensorFlow say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evener.devices.machine import (
    CudaEnvironment,
    Host,
    LinkKind,
    NvmlFailure,
    NvmlGpu,
    NvmlLink,
    NvmlMachine,
    TensorFlowGpu,
    TensorFlowView,
)
from evener.devices.use import InitialiseError, RuntimeLayout, TensorFlowRuntime

GIB = 2**30
MIB = 2**20
HOST = Host(name="Some CPU", num_cores=8, memory_total_bytes=64 * GIB, memory_free_bytes=60 * GIB)


def gpu(
    index: int,
    *,
    name: str = "NVIDIA A100",
    total: int = 40 * GIB,
    free: int | None = None,
    capability: tuple[int, int] = (8, 0),
    multiprocessors: int = 108,
    links: Sequence[NvmlLink] = (),
) -> NvmlGpu:
    return NvmlGpu(
        index=index,
        uuid=f"GPU-{index}000",
        name=name,
        compute_capability=capability,
        memory_total_bytes=total,
        memory_free_bytes=total - GIB if free is None else free,
        num_multiprocessors=multiprocessors,
        pci_bus_id=f"00000000:{index + 1:02x}:00",
        links=tuple(links),
    )


def machine(*gpus: NvmlGpu, driver: str = "550.54.15", cuda: tuple[int, int] = (12, 4)):
    return NvmlMachine(driver_version=driver, cuda_driver_version=cuda, gpus=gpus)


def linked(num_gpus: int, kind: LinkKind, count: int = 1) -> NvmlMachine:
    """GPUs of which each has the same way to every other."""

    def links(index: int) -> list[NvmlLink]:
        others = (other for other in range(num_gpus) if other != index)
        return [NvmlLink(to_index=other, kind=kind, count=count) for other in others]

    return machine(*(gpu(index, links=links(index)) for index in range(num_gpus)))


NO_DRIVER = NvmlMachine(
    failure=NvmlFailure(kind="no_driver", message="NVML Shared Library Not Found")
)
NO_GPUS = machine()
TWO_EQUAL = linked(2, "pcie")
SMALL = gpu(1, name="RTX 3060", total=12 * GIB, capability=(8, 6), multiprocessors=28)
UNEQUAL = machine(
    gpu(0, name="RTX 3090", total=24 * GIB, capability=(8, 6), multiprocessors=82), SMALL
)
EIGHT = linked(8, "nvlink", 12)
ONE_LOST = machine(gpu(0), NvmlGpu(index=1, failure="GPU is lost"))
MISMATCH = NvmlMachine(
    failure=NvmlFailure(
        kind="driver_mismatch", message="RM has detected an NVML/RM version mismatch."
    )
)


def seen(*gpus: NvmlGpu) -> tuple[TensorFlowGpu, ...]:
    """Return TensorFlow's list of these GPUs."""
    return tuple(
        TensorFlowGpu(index=index, name=gpu.name, compute_capability=gpu.compute_capability)
        for index, gpu in enumerate(gpus)
    )


def view(*gpus: NvmlGpu, **changes: object) -> TensorFlowView:
    """Return the view of a TensorFlow wheel with CUDA on a machine with these GPUs."""
    whole = TensorFlowView(
        version="2.21.0",
        built_with_cuda=True,
        cuda_version="12.5.1",
        lowest_capability=(6, 0),
        gpus=seen(*gpus),
        cuda_12_packages=("nvidia-cublas-cu12",),
    )
    return replace(whole, **changes)  # pyright: ignore[reportArgumentType]


def shows(visible: str | None) -> CudaEnvironment:
    return CudaEnvironment(visible_devices=visible)


class RecordedNvml:
    """A driver that always says the same."""

    def __init__(self, recorded: NvmlMachine) -> None:
        self._recorded = recorded

    def read_machine(self) -> NvmlMachine:
        return self._recorded


class FakeRuntime(TensorFlowRuntime):
    """A TensorFlow runtime that starts unless it is given one of the broken GPUs."""

    def __init__(self, start: TensorFlowView, *, broken: Sequence[int] = ()) -> None:
        super().__init__()
        self.tried: list[str] = []
        self.growth: list[bool] = []
        self.limits_threads: list[bool] = []
        self._view = start
        self._broken = set(broken)

    def view(self) -> TensorFlowView:
        return self._view

    def configure(self, layout: RuntimeLayout, *, memory_growth: bool) -> None:
        self.tried.append(str(layout))
        self.growth.append(memory_growth)
        self.limits_threads.append(layout.limit_threads)
        gpus = [
            replace(
                gpu,
                visible=any(request.index == gpu.index for request in layout.gpus),
                caps_bytes=tuple(
                    request.cap_bytes
                    for request in layout.gpus
                    if request.index == gpu.index and request.cap_bytes is not None
                ),
            )
            for gpu in self._view.gpus
        ]
        num_cpus = max(self._view.num_logical_cpus, layout.num_cpus)
        self._view = replace(self._view, gpus=tuple(gpus), num_logical_cpus=num_cpus)

    def initialise(self) -> None:
        shown = {gpu.index for gpu in self._view.gpus if gpu.visible}
        if shown & self._broken or -1 in self._broken:
            raise InitialiseError("CUDA_ERROR_ECC_UNCORRECTABLE:\n  uncorrectable ECC error")
        self._view = replace(self._view, runtime_initialised=True)
