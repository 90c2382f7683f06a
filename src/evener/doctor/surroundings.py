"""The machine, the environment and the installed packages, asked without TensorFlow."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from evener.devices.nvml import Nvml, NvmlGpu, NvmlMachine

# One of these is there with a driver; the last is Windows's Linux.
_DRIVER = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")
_PACKAGES = ("tensorflow", "intel-tensorflow", "tf-nightly", "keras", "tf-keras", "nvidia-", "cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a program will find around it.

    Args:
        machine: What the driver says of the GPUs, hidden or not.
        environment: The environment variables.
        packages: Installed packages that matter to TensorFlow: name in lower case to version.
    """

    machine: NvmlMachine = field(default_factory=NvmlMachine)
    environment: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> tuple[NvmlGpu, ...]:
        """Return the GPUs that the driver sees, hidden from programs or not."""
        return self.machine.gpus


def surroundings_here() -> Surroundings:
    """Return what is here. TensorFlow is not asked, so it is quick."""
    return Surroundings(
        machine=Nvml().read_machine() if _may_have_driver() else NvmlMachine(),
        environment=dict(os.environ),
        packages=dict(_installed(sys.path)),
    )


def _may_have_driver() -> bool:
    """Return whether NVIDIA's driver may be there; to ask it takes a tenth of a second."""
    return any(Path(path).exists() for path in _DRIVER)


def _installed(folders: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield names and versions, as the folders of their metadata say them.

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
