"""The machine: its processor and memory, the GPUs of its driver, what its environment says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from evener.devices.machine import (
    Nvml,
    NvmlFailure,
    NvmlLink,
    NvmlMachine,
    cores_per_multiprocessor,
    lowest_capability,
    read_cuda_environment,
    read_host,
)
from unit.devices.machines import GIB


def test_linux_is_read(tmp_path: Path) -> None:
    cpu = tmp_path / "cpuinfo"
    cpu.write_text("processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\n", encoding="utf-8")
    memory = tmp_path / "meminfo"
    memory.write_text("MemTotal:  2048 kB\nMemFree: 7 kB\nMemAvailable:  1024 kB\n")
    host = read_host(cpu, memory)
    assert host.name == "Some CPU @ 3 GHz"
    assert (host.memory_total_bytes, host.memory_free_bytes) == (2048 * 1024, 1024 * 1024)
    assert host.num_cores >= 1


def test_system_that_does_not_say(tmp_path: Path) -> None:
    host = read_host(tmp_path / "none", tmp_path / "none")
    assert host.name
    assert host.memory_total_bytes is None


class FakeLibrary:
    """The part of pynvml that evener uses, on made-up hardware.

    Args:
        gpus: NVML error of each function that fails, by GPU.
        nvlinks: Other ends of the NVLinks of each GPU: GPU numbers, or "switch".
        near: The pairs of GPUs below one host bridge.
        init: NVML error with which initialising fails.
    """

    def __init__(
        self,
        *gpus: dict[str, int],
        nvlinks: dict[int, list[int | str]] | None = None,
        near: tuple[tuple[int, int], ...] = (),
        init: int | None = None,
    ) -> None:
        self._gpus, self._near, self._init = gpus, near, init
        self._nvlinks = nvlinks or {}
        self.open = 0
        self.nvmlSystemGetDriverVersion = lambda: "550.54.15"
        self.nvmlSystemGetCudaDriverVersion = lambda: 12040
        self.nvmlDeviceGetCount = lambda: len(gpus)
        self.nvmlDeviceGetHandleByIndex = self._function("handle", lambda gpu: gpu)
        self.nvmlDeviceGetMemoryInfo = self._function(
            "memory", lambda gpu: SimpleNamespace(total=24 * GIB, free=20 * GIB)
        )
        self.nvmlDeviceGetNumGpuCores = self._function("cores", lambda gpu: 82 * 128)
        self.nvmlDeviceGetCudaComputeCapability = lambda gpu: (8, 6)
        self.nvmlDeviceGetUUID = lambda gpu: f"GPU-{gpu}"
        self.nvmlDeviceGetName = lambda gpu: b"RTX 3090"
        self.nvmlDeviceGetPciInfo = lambda gpu: self._place(f"0000000A:0{gpu}:00.0")
        # NVML writes the same place in another way here.
        self.nvmlDeviceGetNvLinkRemotePciInfo = lambda gpu, link: self._place(
            f"0000000a:0{self._nvlinks[gpu][link]}:00.1"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVML"):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def _function(self, name: str, answer: Callable[[int], Any]) -> Callable[[int], Any]:
        def call(gpu: int) -> Any:
            if name in self._gpus[gpu]:
                raise pynvml.NVMLError(self._gpus[gpu][name])
            return answer(gpu)

        return call

    def _place(self, text: str) -> Any:
        return SimpleNamespace(busId=text.encode())

    def nvmlInit(self) -> None:
        if self._init is not None:
            raise pynvml.NVMLError(self._init)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetNvLinkState(self, gpu: int, link: int) -> int:
        if link >= len(self._nvlinks.get(gpu, [])):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return pynvml.NVML_FEATURE_ENABLED

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: int, link: int) -> int:
        kind = "SWITCH" if self._nvlinks[gpu][link] == "switch" else "GPU"
        return getattr(pynvml, f"NVML_NVLINK_DEVICE_TYPE_{kind}")

    def nvmlDeviceGetTopologyCommonAncestor(self, gpu: int, other: int) -> int:
        near = (gpu, other) in self._near or (other, gpu) in self._near
        return pynvml.NVML_TOPOLOGY_HOSTBRIDGE if near else pynvml.NVML_TOPOLOGY_SYSTEM


def read(library: FakeLibrary) -> NvmlMachine:
    recorded = Nvml(library).read_machine()
    assert library.open == 0, "NVML was left open"
    return recorded


def test_gpu_is_read_whole() -> None:
    recorded = read(FakeLibrary({}))
    assert (recorded.driver_version, recorded.cuda_driver_version) == ("550.54.15", (12, 4))
    (gpu,) = recorded.gpus
    assert (gpu.index, gpu.uuid, gpu.name) == (0, "GPU-0", "RTX 3090")
    assert (gpu.memory_total_bytes, gpu.memory_free_bytes) == (24 * GIB, 20 * GIB)
    assert (gpu.compute_capability, gpu.num_multiprocessors) == ((8, 6), 82)
    assert (gpu.links, gpu.failure) == ((), None)
    without_gpus = read(FakeLibrary())
    assert (recorded.failure, without_gpus.failure, without_gpus.gpus) == (None, None, ())


@pytest.mark.parametrize("function", ["handle", "memory"])
def test_gpu_that_disappears_stays_in_the_list(function: str) -> None:
    recorded = read(FakeLibrary({}, {function: pynvml.NVML_ERROR_GPU_IS_LOST}, {}))
    assert [gpu.failure for gpu in recorded.gpus] == [None, "GPU is lost", None]
    assert recorded.gpus[1].index == 1
    assert [link.to_index for link in recorded.gpus[0].links] == [2]


def test_what_a_gpu_does_not_say_is_none() -> None:
    (gpu,) = read(FakeLibrary({"cores": pynvml.NVML_ERROR_NOT_SUPPORTED})).gpus
    assert gpu.num_multiprocessors is None
    assert gpu.memory_total_bytes == 24 * GIB


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no_driver"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "no_driver"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "driver_mismatch"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "other"),
    ],
)
def test_driver_that_cannot_be_asked_is_a_stated_failure(error: int, kind: Any) -> None:
    recorded = read(FakeLibrary({}, init=error))
    message = str(pynvml.NVMLError(error))
    assert recorded == NvmlMachine(failure=NvmlFailure(kind=kind, message=message))


class TestLinks:
    def test_nvlinks_between_two_gpus_are_counted(self) -> None:
        nvlinks: dict[int, list[int | str]] = {0: [1, 1, 1, 1], 1: [0, 0, 0, 0]}
        first, second = read(FakeLibrary({}, {}, nvlinks=nvlinks)).gpus
        assert first.links == (NvmlLink(to_index=1, kind="nvlink", count=4),)
        assert second.links == (NvmlLink(to_index=0, kind="nvlink", count=4),)

    def test_a_switch_gives_each_pair_the_links_of_the_smaller(self) -> None:
        nvlinks: dict[int, list[int | str]] = {0: ["switch"] * 12, 1: ["switch"] * 6, 2: []}
        first, _, third = read(FakeLibrary({}, {}, {}, nvlinks=nvlinks)).gpus
        assert first.links == (
            NvmlLink(to_index=1, kind="nvlink", count=6),
            NvmlLink(to_index=2, kind="host"),
        )
        assert [link.kind for link in third.links] == ["host", "host"]

    def test_without_nvlink_the_bus_decides(self) -> None:
        first, _, _ = read(FakeLibrary({}, {}, {}, near=((0, 1),))).gpus
        assert first.links == (
            NvmlLink(to_index=1, kind="pcie"),
            NvmlLink(to_index=2, kind="host"),
        )


@pytest.mark.parametrize(
    ("capability", "cores"),
    [((3, 7), 192), ((6, 1), 128), ((7, 5), 64), ((8, 0), 64), ((8, 9), 128), ((12, 0), 128)],
)
def test_cores_per_multiprocessor(capability: tuple[int, int], cores: int) -> None:
    assert cores_per_multiprocessor(capability) == cores


def test_every_function_is_in_the_installed_package() -> None:
    used = [name for name in dir(FakeLibrary({})) if name.startswith("nvml")]
    assert len(used) > 10
    assert [name for name in used if not hasattr(pynvml, name)] == []


@pytest.mark.parametrize(
    ("value", "count"), [(None, None), ("", None), ("4", 4), ("0", 0), ("-1", None), ("x", None)]
)
def test_multiprocessor_count_of_the_environment(value: str | None, count: int | None) -> None:
    environ = {} if value is None else {"TF_MIN_GPU_MULTIPROCESSOR_COUNT": value}
    assert read_cuda_environment(environ).min_multiprocessors == count


def test_lowest_capability() -> None:
    assert lowest_capability(["compute_90", "sm_120", "sm_60", "sm_89"]) == (6, 0)
    assert lowest_capability(["sm_90a"]) is None
    assert lowest_capability([]) is None
