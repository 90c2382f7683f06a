"""The NVIDIA driver's view of the GPUs, through NVML: a seam that tests replace.

`Nvml` reads the machine once into an `NvmlMachine`, a plain value; nothing else in evener
talks to NVML. A GPU that fails while it is read stays in the list, with the failure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

LinkKind = Literal["nvlink", "pcie", "host"]
FailureKind = Literal["no_driver", "driver_mismatch", "other"]

# CUDA cores in one multiprocessor, by compute capability; NVML counts cores only.
# Source: NVIDIA, CUDA C++ Programming Guide 12.9, section 17 "Compute Capabilities",
# "Architecture": the 32-bit floating-point cores of each generation.
_CORES = {(5, 0): 128, (6, 0): 64, (6, 1): 128, (7, 0): 64, (8, 0): 64, (8, 6): 128}
_SWITCH = "switch"
_BUS_ID = re.compile(r"[0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlLink:
    """The fastest connection from one GPU to another.

    Args:
        to_index: NVML's number of the other GPU.
        kind: ``"nvlink"``; ``"pcie"`` if the path stays below one PCIe host bridge; ``"host"``
            if it crosses the interconnect between host bridges or CPU sockets.
        count: Number of NVLinks; 1 for the other kinds.
    """

    to_index: int
    kind: LinkKind
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlGpu:
    """One GPU as the driver describes it; None where a value is unknown.

    Args:
        index: NVML's number, in the order of the PCI bus (as in nvidia-smi).
        uuid: Permanent identifier, ``"GPU-..."``.
        name: The product.
        compute_capability: Major and minor number.
        memory_total_bytes: Its memory.
        memory_free_bytes: Its free memory.
        num_multiprocessors: Number of streaming multiprocessors.
        pci_bus_id: The address on the PCI bus.
        links: The connection to each other GPU.
        failure: Error of the driver if the GPU does not answer; the other values may be None.
    """

    index: int
    uuid: str | None = None
    name: str | None = None
    compute_capability: tuple[int, int] | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    num_multiprocessors: int | None = None
    pci_bus_id: str | None = None
    links: tuple[NvmlLink, ...] = ()
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlFailure:
    """Reason for which the driver could not be queried."""

    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlMachine:
    """The driver's view of the machine.

    Args:
        driver_version: Version of the driver, such as ``"550.54.15"``.
        cuda_driver_version: The newest CUDA that the driver's library supports.
        gpus: The GPUs, by their NVML number.
        failure: Reason for which the driver could not be queried, or None.
    """

    driver_version: str | None = None
    cuda_driver_version: tuple[int, int] | None = None
    gpus: tuple[NvmlGpu, ...] = ()
    failure: NvmlFailure | None = None


class NvmlReader(Protocol):
    """Reads the GPUs of a machine."""

    def read_machine(self) -> NvmlMachine:
        """Read the machine as it is now; never raises for the state of the machine."""
        ...


class Nvml:
    """Reads the GPUs through NVML.

    Args:
        library: Module with the functions of ``pynvml``; None for ``pynvml``.
    """

    def __init__(self, library: Any = None) -> None:
        if library is None:
            import pynvml as library
        self._nvml = library

    def read_machine(self) -> NvmlMachine:
        """Read the machine as it is now; never raises for the state of the machine."""
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            return NvmlMachine(failure=self._failure(error))
        try:
            return self._read()
        except nvml.NVMLError as error:
            return NvmlMachine(failure=self._failure(error))
        finally:
            self._query(nvml.nvmlShutdown)

    def _read(self) -> NvmlMachine:
        nvml = self._nvml
        handles: dict[int, Any] = {}
        gpus: list[NvmlGpu] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                gpus.append(self._read_gpu(index, handle))
                handles[index] = handle
            except nvml.NVMLError as error:
                gpus.append(NvmlGpu(index=index, failure=str(error)))
        return NvmlMachine(
            driver_version=_text(self._query(nvml.nvmlSystemGetDriverVersion)),
            cuda_driver_version=_cuda(self._query(nvml.nvmlSystemGetCudaDriverVersion)),
            gpus=tuple(replace(gpu, links=self._links(gpu.index, handles, gpus)) for gpu in gpus),
        )

    def _read_gpu(self, index: int, handle: Any) -> NvmlGpu:
        """Read what every GPU must answer; raises NVMLError if it does not."""
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        capability = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        num_cores = self._query(nvml.nvmlDeviceGetNumGpuCores, handle)
        return NvmlGpu(
            index=index,
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            name=_text(nvml.nvmlDeviceGetName(handle)),
            compute_capability=capability,
            memory_total_bytes=int(memory.total),
            memory_free_bytes=int(memory.free),
            num_multiprocessors=num_cores and num_cores // cores_per_multiprocessor(capability),
            pci_bus_id=_bus_id(nvml.nvmlDeviceGetPciInfo(handle)),
        )

    def _links(
        self, index: int, handles: dict[int, Any], gpus: Sequence[NvmlGpu]
    ) -> tuple[NvmlLink, ...]:
        if index not in handles:
            return ()
        by_nvlink = self._nvlinks(handles[index])
        links: list[NvmlLink] = []
        for other, handle in handles.items():
            if other == index:
                continue
            count = by_nvlink.get(gpus[other].pci_bus_id or "", 0)
            if not count and _SWITCH in by_nvlink:
                # Over an NVSwitch every GPU reaches every other with all links of the smaller.
                count = min(by_nvlink[_SWITCH], self._nvlinks(handle).get(_SWITCH, 0))
            if count:
                links.append(NvmlLink(to_index=other, kind="nvlink", count=count))
            else:
                links.append(NvmlLink(to_index=other, kind=self._bus(handles[index], handle)))
        return tuple(links)

    def _nvlinks(self, handle: Any) -> dict[str, int]:
        """Count the active NVLinks by the PCI bus id at their other end."""
        nvml = self._nvml
        counts: dict[str, int] = {}
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            # A link that is not there, and a GPU without NVLink, answer with an error.
            if (
                self._query(nvml.nvmlDeviceGetNvLinkState, handle, link)
                != nvml.NVML_FEATURE_ENABLED
            ):
                continue
            kind = self._query(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
            if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                end = _SWITCH
            else:
                end = _bus_id(self._query(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link))
            if end is not None:
                counts[end] = counts.get(end, 0) + 1
        return counts

    def _bus(self, handle: Any, other: Any) -> LinkKind:
        nvml = self._nvml
        level = self._query(nvml.nvmlDeviceGetTopologyCommonAncestor, handle, other)
        near = level is not None and level <= nvml.NVML_TOPOLOGY_HOSTBRIDGE
        return "pcie" if near else "host"

    def _query(self, function: Any, *args: Any) -> Any:
        """Return the value, or None if this GPU or driver does not support the query."""
        try:
            return function(*args)
        except self._nvml.NVMLError:
            return None

    def _failure(self, error: Any) -> NvmlFailure:
        nvml = self._nvml
        kinds: dict[int, FailureKind] = {
            nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no_driver",
            nvml.NVML_ERROR_DRIVER_NOT_LOADED: "no_driver",
            nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver_mismatch",
        }
        return NvmlFailure(kind=kinds.get(error.value, "other"), message=str(error))


def cores_per_multiprocessor(capability: tuple[int, int]) -> int:
    """Return the number of CUDA cores per multiprocessor of a compute capability.

    >>> cores_per_multiprocessor((8, 0)), cores_per_multiprocessor((9, 0))
    (64, 128)
    """
    # An unlisted generation has the number of the last listed one before it.
    known = [generation for generation in sorted(_CORES) if generation <= capability]
    return _CORES[known[-1]] if known else 192


def _bus_id(info: Any) -> str | None:
    text = "" if info is None else _text(info.busId) or ""
    # Domain, bus and device, but not the function: two answers may differ in its spelling.
    match = _BUS_ID.match(text)
    return match.group().lower() if match else None


def _cuda(version: int | None) -> tuple[int, int] | None:
    return None if version is None else (version // 1000, version % 1000 // 10)


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
