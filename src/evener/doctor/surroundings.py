"""The machine, the environment and the installed packages, asked without TensorFlow."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from evener.devices.nvml import Nvml, NvmlGpu, NvmlMachine

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
    packages = {
        name: distribution.version
        for distribution in importlib.metadata.distributions()
        if (name := (distribution.name or "").lower().replace("_", "-")).startswith(_PACKAGES)
    }
    return Surroundings(
        machine=Nvml().read_machine(), environment=dict(os.environ), packages=packages
    )
