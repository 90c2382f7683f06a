"""The machine and the environment, asked without TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from evener.base.text import format_bytes
from evener.devices.machine import Nvml, NvmlGpu, NvmlMachine

# One of these exists if there is a driver; the last is that of WSL.
_DRIVER = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")
# Number of GPUs to assume if none is given and the machine has none.
_ASSUMED = 2
HIDING = "CUDA_VISIBLE_DEVICES"
"""The environment variable that hides GPUs from a program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Machine and environment of a program."""

    machine: NvmlMachine = field(default_factory=NvmlMachine)
    environment: Mapping[str, str] = field(default_factory=dict)  # The environment variables
    # GPUs to judge for, hidden from programs or not; None for those that the driver lists.
    assumed: tuple[NvmlGpu, ...] | None = None
    is_other: bool = False  # Whether their number is not that of this machine
    is_assumed: bool = False  # Whether nobody has given that number

    @property
    def gpus(self) -> tuple[NvmlGpu, ...]:
        """Return the GPUs to judge for."""
        return self.machine.gpus if self.assumed is None else self.assumed

    @property
    def gpus_told(self) -> str:
        """Return the GPUs as a finding names them as its evidence."""
        sizes = [gpu.memory_total_bytes for gpu in self.gpus]
        told = ", ".join(f"gpu:{n} {format_bytes(size)}" for n, size in enumerate(sizes) if size)
        count = f"{len(sizes)} GPU{'' if len(sizes) == 1 else 's'}"
        if self.is_other:
            return f"assumed: a machine with {count}" + (f": {told}" * bool(told))
        names = sorted({gpu.name or "a GPU" for gpu in self.gpus})
        return f"the machine has {count}: {', '.join(names)}" + (
            f" ({told})" if told and len(set(sizes)) > 1 else ""
        )

    def judged_for(
        self,
        num_gpus: int | None,
        gpu_memory_bytes: int | None = None,
        cards: Sequence[int | None] = (),
    ) -> Surroundings:
        """Return the same with a number of GPUs, and their memory, that are assumed.

        Where the machine has no GPU, `cards` has the memory of the first ones.
        """
        listed = self.machine.gpus or tuple(
            NvmlGpu(index=index, memory_total_bytes=size) for index, size in enumerate(cards)
        )
        there = len(self.machine.gpus)
        is_assumed = num_gpus is None and not there
        wanted = _ASSUMED if is_assumed else there if num_gpus is None else num_gpus
        others = (NvmlGpu(index=index) for index in range(len(listed), wanted))
        gpus = listed if wanted == there else (*listed[:wanted], *others)
        if gpu_memory_bytes is not None:
            gpus = tuple(replace(gpu, memory_total_bytes=gpu_memory_bytes) for gpu in gpus)
        environment = self.environment
        if wanted != there:
            # The variable that hides this machine's GPUs does not apply to another machine.
            environment = {name: value for name, value in environment.items() if name != HIDING}
        return replace(
            self,
            environment=environment,
            assumed=gpus,
            is_other=wanted != there,
            is_assumed=is_assumed,
        )


def surroundings_here() -> Surroundings:
    """Return those of this machine, without importing TensorFlow, which takes seconds."""
    # Loading NVML takes a tenth of a second.
    has_driver = any(Path(path).exists() for path in _DRIVER)
    return Surroundings(
        machine=Nvml().read_machine() if has_driver else NvmlMachine(),
        environment=dict(os.environ),
    )
