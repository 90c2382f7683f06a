"""The machine as the host, NVIDIA's driver and TensorFlow describe it: a seam that tests replace.

Each is read once into a plain value. TensorFlow is imported when `read_tensorflow` is called, and
its runtime is not started.
"""

from __future__ import annotations

import functools
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from evener.base.libraries import SUPPORTED, check_is_there


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    name: str  # of its processor
    num_cores: int  # that this process may run on
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None  # available without swapping


def read_host(
    cpu_info: Path = Path("/proc/cpuinfo"), memory_info: Path = Path("/proc/meminfo")
) -> Host:
    name = _fields(cpu_info).get("model name") or platform.processor() or platform.machine()
    # Containers and taskset restrict the process, not the machine. Not all systems have this.
    has_affinity = hasattr(os, "sched_getaffinity")
    memory = _fields(memory_info)
    kibibytes = [(memory.get(key, "").split() or [""])[0] for key in ("MemTotal", "MemAvailable")]
    total, free = (int(text) * 1024 if text.isdigit() else None for text in kibibytes)
    return Host(
        name=name,
        num_cores=len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1,
        memory_total_bytes=total,
        memory_free_bytes=free,
    )


def _fields(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


# NVIDIA's driver, through NVML. A GPU that fails while it is read stays in the list.

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
    to_index: int
    # "pcie" if the path stays below one PCIe host bridge; "host" if it crosses the interconnect
    # between host bridges or CPU sockets.
    kind: LinkKind
    count: int = 1  # of NVLinks; 1 for the other kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlGpu:
    index: int  # in the order of the PCI bus, as in nvidia-smi
    uuid: str | None = None  # "GPU-..."
    name: str | None = None
    compute_capability: tuple[int, int] | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    num_multiprocessors: int | None = None
    pci_bus_id: str | None = None
    links: tuple[NvmlLink, ...] = ()  # to each other GPU
    failure: str | None = None  # the driver's error if the GPU does not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlFailure:
    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlMachine:
    driver_version: str | None = None
    cuda_driver_version: tuple[int, int] | None = None  # the newest CUDA that it supports
    gpus: tuple[NvmlGpu, ...] = ()
    failure: NvmlFailure | None = None


class Nvml:
    def __init__(self, library: Any = None) -> None:
        if library is None:
            import pynvml as library
        self._nvml = library

    def read_machine(self) -> NvmlMachine:
        nvml = self._nvml
        try:
            nvml.nvmlInit()
            try:
                return self._read()
            finally:
                self._query(nvml.nvmlShutdown)
        except nvml.NVMLError as error:
            kinds: dict[int, FailureKind] = {
                nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no_driver",
                nvml.NVML_ERROR_DRIVER_NOT_LOADED: "no_driver",
                nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver_mismatch",
            }
            kind = kinds.get(error.value, "other")
            return NvmlMachine(failure=NvmlFailure(kind=kind, message=str(error)))

    def _read(self) -> NvmlMachine:
        nvml = self._nvml
        handles: dict[int, Any] = {}
        gpus: list[NvmlGpu] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                # What every GPU must answer.
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                capability = nvml.nvmlDeviceGetCudaComputeCapability(handle)
                cores = self._query(nvml.nvmlDeviceGetNumGpuCores, handle)
                gpu = NvmlGpu(
                    index=index,
                    uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
                    name=_text(nvml.nvmlDeviceGetName(handle)),
                    compute_capability=capability,
                    memory_total_bytes=int(memory.total),
                    memory_free_bytes=int(memory.free),
                    num_multiprocessors=cores and cores // cores_per_multiprocessor(capability),
                    pci_bus_id=_bus_id(nvml.nvmlDeviceGetPciInfo(handle)),
                )
                gpus.append(gpu)
                handles[index] = handle
            except nvml.NVMLError as error:
                gpus.append(NvmlGpu(index=index, failure=str(error)))
        cuda = self._query(nvml.nvmlSystemGetCudaDriverVersion)
        return NvmlMachine(
            driver_version=_text(self._query(nvml.nvmlSystemGetDriverVersion)),
            cuda_driver_version=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
            gpus=tuple(replace(gpu, links=self._links(gpu.index, handles, gpus)) for gpu in gpus),
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
            kind: LinkKind = "nvlink"
            if not count:
                nvml = self._nvml
                level = self._query(
                    nvml.nvmlDeviceGetTopologyCommonAncestor, handles[index], handle
                )
                is_near = level is not None and level <= nvml.NVML_TOPOLOGY_HOSTBRIDGE
                kind = "pcie" if is_near else "host"
            links.append(NvmlLink(to_index=other, kind=kind, count=count or 1))
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

    def _query(self, function: Any, *args: Any) -> Any:
        """Return the value, or None if this GPU or driver does not support the query."""
        try:
            return function(*args)
        except self._nvml.NVMLError:
            return None


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


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFlowGpu:
    index: int
    name: str | None = None
    compute_capability: tuple[int, int] | None = None
    visible: bool = True  # whether it is among `tf.config.get_visible_devices`
    caps_bytes: tuple[int | None, ...] = ()  # of the logical devices that it is split into


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaEnvironment:
    visible_devices: str | None = None  # CUDA_VISIBLE_DEVICES
    min_multiprocessors: int | None = None  # TF_MIN_GPU_MULTIPROCESSOR_COUNT


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFlowView:
    version: str
    built_with_cuda: bool
    cuda_version: str | None = None  # that it was built for
    lowest_capability: tuple[int, int] | None = None  # that it was built for
    gpus: tuple[TensorFlowGpu, ...] = ()  # physical ones
    runtime_initialised: bool = False  # then the devices are fixed
    num_logical_cpus: int = 1  # also before the runtime has started
    cuda_12_packages: tuple[str, ...] = ()  # distributions with NVIDIA's libraries
    cuda_13_packages: tuple[str, ...] = ()
    environment: CudaEnvironment = CudaEnvironment()


def import_tensorflow() -> Any:
    """Import TensorFlow, which takes seconds, and return it."""
    check_is_there(SUPPORTED[0])
    import tensorflow as tf

    return tf


def read_tensorflow() -> TensorFlowView:
    tf = import_tensorflow()
    build = tf.sysconfig.get_build_info()
    visible = tf.config.get_visible_devices("GPU")
    gpus: list[TensorFlowGpu] = []
    for index, gpu in enumerate(tf.config.list_physical_devices("GPU")):
        details = tf.config.experimental.get_device_details(gpu)
        limits = [
            logical.memory_limit
            for logical in tf.config.get_logical_device_configuration(gpu) or ()
        ]
        gpus.append(
            TensorFlowGpu(
                index=index,
                name=details.get("device_name"),
                compute_capability=details.get("compute_capability"),
                visible=gpu in visible,
                # What TensorFlow calls MB are MiB.
                caps_bytes=tuple(mb if mb is None else int(mb * 2**20) for mb in limits),
            )
        )
    cpus = tf.config.list_physical_devices("CPU")
    logical = [tf.config.get_logical_device_configuration(cpu) or (None,) for cpu in cpus[:1]]
    return TensorFlowView(
        version=tf.__version__,
        built_with_cuda=tf.test.is_built_with_cuda(),
        cuda_version=build.get("cuda_version"),
        lowest_capability=lowest_capability(build.get("cuda_compute_capabilities", ())),
        gpus=tuple(gpus),
        runtime_initialised=runtime_initialised(tf),
        num_logical_cpus=sum(map(len, logical)),
        cuda_12_packages=_nvidia_packages("-cu12"),
        cuda_13_packages=_nvidia_packages("-cu13"),
        environment=read_cuda_environment(os.environ),
    )


def read_cuda_environment(environ: Mapping[str, str]) -> CudaEnvironment:
    """Read the environment variables; like TensorFlow, ignore a count that is not a number.

    >>> read_cuda_environment({"TF_MIN_GPU_MULTIPROCESSOR_COUNT": "4"}).min_multiprocessors
    4
    """
    count = environ.get("TF_MIN_GPU_MULTIPROCESSOR_COUNT", "")
    return CudaEnvironment(
        visible_devices=environ.get("CUDA_VISIBLE_DEVICES"),
        min_multiprocessors=int(count) if count.isdecimal() else None,
    )


def lowest_capability(names: Sequence[str]) -> tuple[int, int] | None:
    """Return the lowest compute capability of a build, from names such as ``"sm_60"``.

    >>> lowest_capability(["sm_60", "sm_89", "compute_90"])
    (6, 0)
    """
    digits = [name.rpartition("_")[2] for name in names]
    numbers = [(int(text[:-1]), int(text[-1])) for text in digits if text.isdecimal()]
    return min(numbers, default=None)


def runtime_initialised(tf: Any) -> bool:
    """Return whether TensorFlow's runtime has started.

    There is no public function for it. But changing the number of threads raises once it has
    started, and is harmless before, as the old number is restored.
    """
    threading = tf.config.threading
    before = threading.get_inter_op_parallelism_threads()
    try:
        threading.set_inter_op_parallelism_threads(before + 1)
    except RuntimeError:
        return True
    threading.set_inter_op_parallelism_threads(before)
    return False


# A process sees one set of installed packages, and reading them takes tens of milliseconds.
@functools.cache
def _nvidia_packages(ending: str) -> tuple[str, ...]:
    names = {dist.name.lower() for dist in metadata.distributions() if dist.name}
    return tuple(sorted(n for n in names if n.startswith("nvidia-") and n.endswith(ending)))
