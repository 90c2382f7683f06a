"""TensorFlow's view of the devices, read into a plain value that tests can make themselves.

TensorFlow is imported when `read_tensorflow` is called, not before. Reading does not start
its runtime: devices can still be chosen afterwards.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from evener.versions import SUPPORTED, check_is_there

_MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFlowGpu:
    """One physical GPU in TensorFlow's list.

    Args:
        index: Its index.
        name: The product, if known.
        compute_capability: Major and minor number, if known.
        visible: Whether it is among `tf.config.get_visible_devices`.
        caps_bytes: The memory of each logical device it is split into; empty if it is not split.
    """

    index: int
    name: str | None = None
    compute_capability: tuple[int, int] | None = None
    visible: bool = True
    caps_bytes: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaEnvironment:
    """The environment variables that decide which GPUs TensorFlow lists.

    Args:
        visible_devices: ``CUDA_VISIBLE_DEVICES``; None if it is not set.
        min_multiprocessors: ``TF_MIN_GPU_MULTIPROCESSOR_COUNT`` as a number, or None.
    """

    visible_devices: str | None = None
    min_multiprocessors: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFlowView:
    """TensorFlow's view of the devices.

    Args:
        version: TensorFlow's version.
        built_with_cuda: Whether the installed wheel can use NVIDIA GPUs.
        cuda_version: The CUDA it was built for.
        lowest_capability: The lowest compute capability it was built for.
        gpus: The physical GPUs it lists.
        runtime_initialised: Whether its runtime has started, so that devices are fixed.
        num_logical_cpus: Number of logical CPU devices, also before the runtime has started.
        cuda_12_packages: Installed distributions with NVIDIA's libraries for CUDA 12.
        cuda_13_packages: The same for CUDA 13.
        environment: Environment variables that CUDA and TensorFlow read.
    """

    version: str
    built_with_cuda: bool
    cuda_version: str | None = None
    lowest_capability: tuple[int, int] | None = None
    gpus: tuple[TensorFlowGpu, ...] = ()
    runtime_initialised: bool = False
    num_logical_cpus: int = 1
    cuda_12_packages: tuple[str, ...] = ()
    cuda_13_packages: tuple[str, ...] = ()
    environment: CudaEnvironment = CudaEnvironment()


def import_tensorflow() -> Any:
    """Import TensorFlow, which takes seconds, and return it.

    Raises:
        EngineError: ENG-098 if it is not installed.
    """
    check_is_there(SUPPORTED[0])
    import tensorflow as tf

    return tf


def read_tensorflow(environ: Mapping[str, str] | None = None) -> TensorFlowView:
    """Read what TensorFlow sees now, without starting its runtime.

    Args:
        environ: The environment variables; None for those of this process.
    """
    tf = import_tensorflow()
    build = tf.sysconfig.get_build_info()
    return TensorFlowView(
        version=tf.__version__,
        built_with_cuda=tf.test.is_built_with_cuda(),
        cuda_version=build.get("cuda_version"),
        lowest_capability=lowest_capability(build.get("cuda_compute_capabilities", ())),
        gpus=_read_gpus(tf),
        runtime_initialised=runtime_initialised(tf),
        num_logical_cpus=_num_logical_cpus(tf),
        cuda_12_packages=_nvidia_packages("-cu12"),
        cuda_13_packages=_nvidia_packages("-cu13"),
        environment=read_cuda_environment(os.environ if environ is None else environ),
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


def _read_gpus(tf: Any) -> tuple[TensorFlowGpu, ...]:
    visible = tf.config.get_visible_devices("GPU")
    gpus: list[TensorFlowGpu] = []
    for index, gpu in enumerate(tf.config.list_physical_devices("GPU")):
        details = tf.config.experimental.get_device_details(gpu)
        cuts = tf.config.get_logical_device_configuration(gpu) or ()
        gpus.append(
            TensorFlowGpu(
                index=index,
                name=details.get("device_name"),
                compute_capability=details.get("compute_capability"),
                visible=gpu in visible,
                caps_bytes=tuple(_bytes(cut.memory_limit) for cut in cuts),
            )
        )
    return tuple(gpus)


def _num_logical_cpus(tf: Any) -> int:
    cpus = tf.config.list_physical_devices("CPU")
    return len(tf.config.get_logical_device_configuration(cpus[0]) or (None,)) if cpus else 0


def _bytes(mebibytes: float | None) -> int | None:
    # What TensorFlow calls MB are MiB.
    return None if mebibytes is None else int(mebibytes * _MEBIBYTE)


# A process sees one set of installed packages, and reading them takes tens of milliseconds.
@functools.cache
def _nvidia_packages(ending: str) -> tuple[str, ...]:
    names = {dist.name.lower() for dist in metadata.distributions() if dist.name}
    return tuple(sorted(n for n in names if n.startswith("nvidia-") and n.endswith(ending)))
