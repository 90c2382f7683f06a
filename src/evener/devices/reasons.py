"""Reasons for which a device is not used: each rule stands beside its text.

TensorFlow numbers the GPUs that CUDA shows it, subject to ``CUDA_VISIBLE_DEVICES``; the driver
numbers all GPUs by their PCI address. TensorFlow reports no UUID before its runtime starts, so
GPUs are matched by order and product. CUDA's own order puts the fastest first unless
``CUDA_DEVICE_ORDER=PCI_BUS_ID``; equal GPUs stay in the order of the bus either way, so that only
the numbers of unequal GPUs can differ between the two lists.

The command line, the warning of `use_devices` and the report print the same `Problem`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evener.base.libraries import version_numbers
from evener.base.text import format_bytes
from evener.devices.machine import NvmlGpu, NvmlMachine, TensorFlowGpu, TensorFlowView
from evener.errors import house_form, listed

DEFAULT_MIN_FREE_BYTES = 512 * 2**20
DEFAULT_MIN_MULTIPROCESSORS = 8
# By the major number of CUDA, on Linux. Source: NVIDIA, CUDA Toolkit 12.9 Release Notes,
# table 2 "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version
# Compatibility"; NVIDIA, CUDA Compatibility, table 1.
MINIMUM_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
# Not "evener[gpu]": evener may have been installed from a checkout or a wheel.
_INSTALL = "pip install 'tensorflow[and-cuda]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    code: str
    what: str
    why: str
    fix: str
    by_choice: bool = False  # whether a setting of the user causes it; then there is no warning

    def __str__(self) -> str:
        return house_form(self.code, self.what, self.why, self.fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The input of the rules: the views of the driver and of TensorFlow."""

    machine: NvmlMachine
    view: TensorFlowView
    min_free_bytes: int = DEFAULT_MIN_FREE_BYTES  # of a GPU that is used


def match_gpus(
    seen: Sequence[TensorFlowGpu], gpus: Sequence[NvmlGpu], visible_devices: str | None
) -> dict[int, NvmlGpu]:
    shown = shown_by_cuda(gpus, visible_devices)
    # TensorFlow leaves GPUs out but keeps their order, so take the first that may be the same,
    # preferring those that CUDA_VISIBLE_DEVICES lets through.
    candidates = [*shown, *(gpu for gpu in gpus if gpu not in shown)]
    left = [gpu for gpu in candidates if gpu.failure is None]
    matched: dict[int, NvmlGpu] = {}
    for gpu in seen:
        for other in left:
            pairs = ((gpu.name, other.name), (gpu.compute_capability, other.compute_capability))
            if all(a is None or b is None or a == b for a, b in pairs):
                left.remove(other)
                matched[gpu.index] = other
                break
    return matched


def shown_by_cuda(gpus: Sequence[NvmlGpu], visible_devices: str | None) -> tuple[NvmlGpu, ...]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` lets through, in its order.

    It lists numbers or (beginnings of) UUIDs, and ends at the first that names no GPU; an
    empty value shows none.

    Source: NVIDIA, CUDA C++ Programming Guide 12.9, section "CUDA Environment Variables".
    """
    if visible_devices is None:
        return tuple(gpus)
    shown: list[NvmlGpu] = []
    for word in (part.strip() for part in visible_devices.split(",")):
        if word.isdecimal():
            named = [gpu for gpu in gpus if gpu.index == int(word)]
        else:
            is_uuid = word.startswith("GPU-")
            named = [gpu for gpu in gpus if is_uuid and (gpu.uuid or "").startswith(word)]
        if not named:
            break
        shown.append(named[0])
    return tuple(shown)


def why_not_listed(gpu: NvmlGpu, situation: Situation) -> Problem:
    """Return why TensorFlow does not list a GPU of the driver: the first rule that applies."""
    view, machine = situation.view, situation.machine
    if gpu.failure is not None:
        return Problem(
            code="DEV-108",
            what="The GPU does not answer.",
            why=f"the driver says: {gpu.failure}",
            fix="check `nvidia-smi` and the kernel log (dmesg), then reset the GPU or restart the "
            "machine.",
        )
    if not view.built_with_cuda:
        return _cpu_only_wheel(view)
    visible = view.environment.visible_devices
    shown = shown_by_cuda(machine.gpus, visible)
    if gpu not in shown:
        return Problem(
            code="DEV-101",
            what="Hidden by CUDA_VISIBLE_DEVICES.",
            why=f"CUDA_VISIBLE_DEVICES={visible!r} does not include it, so CUDA does not show it "
            "to any program started here.",
            fix="unset CUDA_VISIBLE_DEVICES, or add the GPU to it.",
            by_choice=True,
        )
    old_driver = _old_driver(situation)
    if old_driver is not None:
        return old_driver
    lowest, has = view.lowest_capability, gpu.compute_capability
    if lowest is not None and has is not None and has < lowest:
        return Problem(
            code="DEV-111",
            what=f"TensorFlow ignores it: compute capability {has[0]}.{has[1]} is too low.",
            why=f"the installed TensorFlow was built for {lowest[0]}.{lowest[1]} and higher.",
            fix="use another GPU, or build TensorFlow for this one.",
        )
    counts = [other.num_multiprocessors for other in shown if other.num_multiprocessors]
    minimum = min_multiprocessors(counts, view.environment.min_multiprocessors)
    if gpu.num_multiprocessors is not None and gpu.num_multiprocessors < minimum:
        count = gpu.num_multiprocessors
        return Problem(
            code="DEV-105",
            what="TensorFlow ignores it: too few multiprocessors.",
            why=f"it has {count}; TensorFlow ignores GPUs with fewer than {minimum}.",
            fix=f"set TF_MIN_GPU_MULTIPROCESSOR_COUNT={count} to use it anyway.",
        )
    cuda_13 = None if view.gpus else _cuda_13(view)
    if cuda_13 is not None:
        return cuda_13
    if view.gpus:
        why = f"the CUDA libraries work: TensorFlow sees {len(view.gpus)} other GPU(s)."
    elif view.cuda_12_packages:
        why = "CUDA 12 packages are installed, but TensorFlow could not load all of them."
    else:
        why = "the CUDA libraries that TensorFlow loads are not installed as packages."
    return Problem(
        code="DEV-107",
        what="The driver lists it, but TensorFlow does not see it.",
        why=why,
        fix=f"{_INSTALL}; with TF_CPP_MIN_LOG_LEVEL=0 TensorFlow logs which library is "
        "missing (guide: https://www.tensorflow.org/install/pip).",
    )


def why_not_used(seen: TensorFlowGpu, gpu: NvmlGpu | None, situation: Situation) -> Problem | None:
    """Return why a GPU that TensorFlow lists is not used, or None."""
    old_driver = _old_driver(situation)
    free = None if gpu is None else gpu.memory_free_bytes
    # Once the runtime has started, it may itself hold the memory.
    is_held_here = situation.view.runtime_initialised and seen.visible
    is_enough = free is None or free >= situation.min_free_bytes or is_held_here
    if old_driver is not None or is_enough:
        return old_driver
    return Problem(
        code="DEV-106",
        what=f"Not enough free memory: {format_bytes(free or 0)}.",
        why=f"a GPU needs at least {format_bytes(situation.min_free_bytes)} free to be used; other "
        "programs hold the rest.",
        fix="stop the programs that use it (nvidia-smi lists them), or wait for them to end.",
    )


def problems_of_machine(situation: Situation) -> Iterator[Problem | None]:
    """Yield the problems of the whole machine, the main cause first."""
    machine, view = situation.machine, situation.view
    kind = None if machine.failure is None else machine.failure.kind
    message = "" if machine.failure is None else machine.failure.message
    if kind == "no_driver":
        yield Problem(
            code="DEV-112",
            what="No NVIDIA driver was found.",
            why=f"NVML says: {message}",
            fix="without an NVIDIA GPU, nothing (cpu:2 makes two stand-ins to try things); with "
            "one, install the NVIDIA driver, and start containers with --gpus all.",
        )
    elif kind == "driver_mismatch":
        yield Problem(
            code="DEV-110",
            what="The NVIDIA driver and its library are of different versions.",
            why=f"the driver was updated while the old kernel module is still loaded ({message}).",
            fix="restart the machine, or reload the nvidia kernel modules.",
        )
    elif kind is not None:
        yield Problem(
            code="DEV-114",
            what="The NVIDIA driver could not be queried.",
            why=f"NVML says: {message}",
            fix="run `nvidia-smi` as the same user; it uses the same library.",
        )
    elif not machine.gpus and not view.gpus:
        yield Problem(
            code="DEV-116",
            what="No NVIDIA GPU was found.",
            why="the NVIDIA driver lists none, and TensorFlow sees none.",
            fix="give the container or virtual machine a GPU (--gpus all), or use cpu:2 for two "
            "stand-ins on the CPU.",
        )
    if not view.built_with_cuda and kind != "no_driver":
        yield _cpu_only_wheel(view)
    yield _old_driver(situation)
    if view.built_with_cuda and not view.gpus:
        yield _cuda_13(view)


def _cpu_only_wheel(view: TensorFlowView) -> Problem:
    return Problem(
        code="DEV-102",
        what="The installed TensorFlow has no GPU support.",
        why=f"TensorFlow {view.version} was built without CUDA (tensorflow-cpu, or a wheel for a "
        "platform without CUDA).",
        fix=f"pip uninstall tensorflow-cpu, then {_INSTALL}.",
    )


def _cuda_13(view: TensorFlowView) -> Problem | None:
    if not view.cuda_13_packages or _major(view.cuda_version) != 12:
        return None
    return Problem(
        code="DEV-103",
        what="CUDA 13 packages are installed, but TensorFlow is built for CUDA 12.",
        why=f"TensorFlow is built for CUDA {view.cuda_version} and cannot load CUDA 13 "
        f"libraries; these are installed: {listed(view.cuda_13_packages, 4)}.",
        fix=f"pip uninstall {' '.join(view.cuda_13_packages)}, then {_INSTALL}.",
    )


def _old_driver(situation: Situation) -> Problem | None:
    """Return the problem of a driver too old for TensorFlow's CUDA, or None.

    A driver's library may be newer than the driver (NVIDIA's forward compatibility packages);
    then the CUDA version that the library knows counts.
    """
    machine, cuda = situation.machine, situation.view.cuda_version
    minimum = MINIMUM_DRIVERS.get(_major(cuda))
    if minimum is None or machine.driver_version is None:
        return None
    knows = machine.cuda_driver_version
    if knows is not None and knows[0] >= _major(cuda):
        return None
    if version_numbers(machine.driver_version) >= version_numbers(minimum):
        return None
    return Problem(
        code="DEV-104",
        what="The NVIDIA driver is too old.",
        why=f"the driver is {machine.driver_version}; CUDA {cuda}, for which TensorFlow was "
        f"built, needs {minimum} or newer.",
        fix=f"install an NVIDIA driver of version {minimum} or newer.",
    )


def min_multiprocessors(counts: Sequence[int], wanted: int | None) -> int:
    """Return the least number of multiprocessors of a GPU that TensorFlow lists.

    The value of ``TF_MIN_GPU_MULTIPROCESSOR_COUNT``; by default 8, or the count of the largest
    GPU if that is smaller. So a small GPU is left out only beside a larger one.

    Source: TensorFlow, common_runtime/gpu/gpu_device.cc, GetMinGPUMultiprocessorCount.

    >>> min_multiprocessors([108, 6], None), min_multiprocessors([6, 5], None)
    (8, 6)
    """
    if wanted is not None:
        return wanted
    return min(DEFAULT_MIN_MULTIPROCESSORS, max(counts, default=DEFAULT_MIN_MULTIPROCESSORS))


def _major(version: str | None) -> int:
    return next(iter(version_numbers(version or "")), 0)
