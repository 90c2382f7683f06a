"""The machine, the environment and the installed packages, asked without TensorFlow."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from evener.base.text import format_bytes
from evener.devices.machine import Nvml, NvmlGpu, NvmlMachine

# One of these exists if there is a driver; the last is that of WSL.
_DRIVER = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")
_PACKAGES = ("tensorflow", "intel-tensorflow", "tf-nightly", "keras", "tf-keras", "nvidia-", "cuda")
# Number of GPUs to assume if none is given and the machine has none.
_ASSUMED = 2
HIDING = "CUDA_VISIBLE_DEVICES"
"""The environment variable that hides GPUs from a program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Machine, environment and packages of a program."""

    machine: NvmlMachine = field(default_factory=NvmlMachine)
    environment: Mapping[str, str] = field(default_factory=dict)  # The environment variables
    packages: Mapping[str, str] = field(default_factory=dict)
    num_gpus: int | None = None  # Number of GPUs to assume; None for those of the machine
    is_assumed: bool = False  # Whether that number is assumed
    gpu_memory_bytes: int | None = None  # Memory of each GPU to assume
    cards: tuple[int | None, ...] = ()

    @property
    def gpus(self) -> tuple[NvmlGpu, ...]:
        """Return the assumed GPUs, hidden from programs or not.

        They are those that the driver lists, unless another number is assumed.
        """
        there = self.machine.gpus or tuple(
            NvmlGpu(index=index, memory_total_bytes=size) for index, size in enumerate(self.cards)
        )
        if self.num_gpus is None:
            return tuple(map(self._sized, there))
        others = (NvmlGpu(index=index) for index in range(len(there), self.num_gpus))
        return tuple(self._sized(gpu) for gpu in (*there[: self.num_gpus], *others))

    def _sized(self, gpu: NvmlGpu) -> NvmlGpu:
        if self.gpu_memory_bytes is None:
            return gpu
        return replace(gpu, memory_total_bytes=self.gpu_memory_bytes)

    @property
    def gpus_told(self) -> str:
        """Return the GPUs as a finding names them as its evidence."""
        sizes = [gpu.memory_total_bytes for gpu in self.gpus]
        told = ", ".join(f"gpu:{n} {format_bytes(size)}" for n, size in enumerate(sizes) if size)
        if self.num_gpus is not None:
            return f"assumed: a machine with {_count(self.num_gpus)}" + (f": {told}" * bool(told))
        names = sorted({gpu.name or "a GPU" for gpu in self.gpus})
        return f"the machine has {_count(len(self.gpus))}: {', '.join(names)}" + (
            f" ({told})" if told and len(set(sizes)) > 1 else ""
        )

    def judged_for(self, num_gpus: int | None, gpu_memory_bytes: int | None = None) -> Surroundings:
        """Return the same with a number of GPUs, and their memory, that are assumed."""
        if gpu_memory_bytes is not None:
            sized = replace(self, gpu_memory_bytes=gpu_memory_bytes)
            return sized.judged_for(num_gpus)
        there = len(self.machine.gpus)
        is_assumed = num_gpus is None and not there
        wanted = _ASSUMED if is_assumed else there if num_gpus is None else num_gpus
        if wanted == there:
            return self
        # The variable that hides this machine's GPUs does not apply to another machine.
        environment = {name: value for name, value in self.environment.items() if name != HIDING}
        return replace(self, num_gpus=wanted, is_assumed=is_assumed, environment=environment)


def surroundings_here() -> Surroundings:
    """Return those of this machine, without importing TensorFlow, which takes seconds."""
    return Surroundings(
        # Loading NVML takes a tenth of a second.
        machine=Nvml().read_machine()
        if any(Path(path).exists() for path in _DRIVER)
        else NvmlMachine(),
        environment=dict(os.environ),
        packages=dict(_installed(sys.path)),
    )


def _count(num_gpus: int) -> str:
    return f"{num_gpus} GPU{'' if num_gpus == 1 else 's'}"


def _installed(folders: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield names and versions of packages from the names of their metadata folders.

    `importlib.metadata` opens a file for each package to learn its name.
    Source: Python Packaging Authority, "Recording installed projects", section
    "The .dist-info directory": its name is ``{name}-{version}.dist-info``.
    """
    for folder in folders:
        for path in Path(folder or ".").glob("*.dist-info"):
            name, _, version = path.stem.rpartition("-")
            name = name.lower().replace("_", "-")
            if name.startswith(_PACKAGES):
                yield name, version
