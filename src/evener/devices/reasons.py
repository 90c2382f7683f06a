"""Reasons for which a device is not used: their texts, and the rules that find them.

TensorFlow numbers the GPUs that CUDA shows it, subject to ``CUDA_VISIBLE_DEVICES``; the driver
numbers all GPUs by their PCI address. TensorFlow reports no UUID before its runtime starts, so
GPUs are matched by order and product. CUDA's own order puts the fastest first unless
``CUDA_DEVICE_ORDER=PCI_BUS_ID``; equal GPUs stay in the order of the bus either way, so that only
the numbers of unequal GPUs can differ between the two lists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from evener.base.libraries import version_numbers
from evener.base.text import format_bytes
from evener.devices.machine import NvmlGpu, NvmlMachine, TensorFlowGpu, TensorFlowView
from evener.errors import house_form, listed

# The problems that keep a device from being used: what happened, why, and the fix.
#
# Each function returns one `Problem`, so that all texts are in one file. The command
# line, the warning of `use_devices` and the report print the same object.

ENVIRONMENT_GUIDE = "https://www.tensorflow.org/install/pip"
# Not "evener[gpu]": evener may have been installed from a checkout or a wheel.
_INSTALL = "pip install 'tensorflow[and-cuda]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Problem that keeps one device, or all, from being used."""

    code: str  # Stable code, such as ``"DEV-101"``
    what: str  # Sentence that says what happened
    why: str  # The reason, with the numbers
    fix: str  # Remedy for the user
    by_choice: bool = False  # Whether a setting of the user causes it; then no warning is printed

    def __str__(self) -> str:
        """Return the problem in the form of all messages of evener."""
        return house_form(self.code, self.what, self.why, self.fix)


def hidden_by_cuda(value: str) -> Problem:
    """`CUDA_VISIBLE_DEVICES` leaves the GPU out."""
    return Problem(
        code="DEV-101",
        what="Hidden by CUDA_VISIBLE_DEVICES.",
        why=f"CUDA_VISIBLE_DEVICES={value!r} does not include it, so CUDA does not show it "
        "to any program started here.",
        fix="unset CUDA_VISIBLE_DEVICES, or add the GPU to it.",
        by_choice=True,
    )


def cpu_only_wheel(version: str) -> Problem:
    """TensorFlow itself was built without CUDA."""
    return Problem(
        code="DEV-102",
        what="The installed TensorFlow has no GPU support.",
        why=f"TensorFlow {version} was built without CUDA (tensorflow-cpu, or a wheel for a "
        "platform without CUDA).",
        fix=f"pip uninstall tensorflow-cpu, then {_INSTALL}.",
    )


def cuda_13_packages(packages: Sequence[str], cuda_version: str | None) -> Problem:
    """Libraries of CUDA 13 are installed beside a build for CUDA 12."""
    return Problem(
        code="DEV-103",
        what="CUDA 13 packages are installed, but TensorFlow is built for CUDA 12.",
        why=f"TensorFlow is built for CUDA {cuda_version or '12'} and cannot load CUDA 13 "
        f"libraries; these are installed: {listed(packages, 4)}.",
        fix=f"pip uninstall {' '.join(packages)}, then {_INSTALL}.",
    )


def driver_too_old(driver: str, minimum: str, cuda_version: str | None) -> Problem:
    """The NVIDIA driver is older than the CUDA that TensorFlow was built for."""
    return Problem(
        code="DEV-104",
        what="The NVIDIA driver is too old.",
        why=f"the driver is {driver}; CUDA {cuda_version or '12'}, for which TensorFlow was "
        f"built, needs {minimum} or newer.",
        fix=f"install an NVIDIA driver of version {minimum} or newer.",
    )


def too_few_multiprocessors(count: int, minimum: int) -> Problem:
    """TensorFlow ignores small GPUs beside larger ones."""
    return Problem(
        code="DEV-105",
        what="TensorFlow ignores it: too few multiprocessors.",
        why=f"it has {count}; TensorFlow ignores GPUs with fewer than {minimum}.",
        fix=f"set TF_MIN_GPU_MULTIPROCESSOR_COUNT={count} to use it anyway.",
    )


def not_enough_free_memory(free_bytes: int, minimum_bytes: int) -> Problem:
    """Other programs hold the GPU's memory."""
    return Problem(
        code="DEV-106",
        what=f"Not enough free memory: {format_bytes(free_bytes)}.",
        why=f"a GPU needs at least {format_bytes(minimum_bytes)} free to be used; other "
        "programs hold the rest.",
        fix="stop the programs that use it (nvidia-smi lists them), or wait for them to end.",
    )


def not_seen(num_seen: int, *, has_cuda_packages: bool) -> Problem:
    """The driver lists the GPU and TensorFlow does not, for no other known reason."""
    if num_seen:
        why = f"the CUDA libraries work: TensorFlow sees {num_seen} other GPU(s)."
    elif has_cuda_packages:
        why = "CUDA 12 packages are installed, but TensorFlow could not load all of them."
    else:
        why = "the CUDA libraries that TensorFlow loads are not installed as packages."
    return Problem(
        code="DEV-107",
        what="The driver lists it, but TensorFlow does not see it.",
        why=why,
        fix=f"{_INSTALL}; with TF_CPP_MIN_LOG_LEVEL=0 TensorFlow logs which library is "
        f"missing (guide: {ENVIRONMENT_GUIDE}).",
    )


def lost(message: str) -> Problem:
    """The GPU stopped answering."""
    return Problem(
        code="DEV-108",
        what="The GPU does not answer.",
        why=f"the driver says: {message}",
        fix="check `nvidia-smi` and the kernel log (dmesg), then reset the GPU or restart the "
        "machine.",
    )


def initialising_failed(names: str, message: str) -> Problem:
    """TensorFlow refused to start on these devices."""
    return Problem(
        code="DEV-109",
        what=f"TensorFlow could not be started on {names}.",
        # TensorFlow's message may have many lines; print one.
        why=f"TensorFlow says: {' '.join(message.split())[:400]}",
        fix="check `nvidia-smi` for a GPU that hangs or has no free memory, or choose other "
        "devices, for example EVENER_DEVICES=gpu:0.",
    )


def driver_mismatch(message: str) -> Problem:
    """Kernel module and user library of the driver are of different versions."""
    return Problem(
        code="DEV-110",
        what="The NVIDIA driver and its library are of different versions.",
        why=f"the driver was updated while the old kernel module is still loaded ({message}).",
        fix="restart the machine, or reload the nvidia kernel modules.",
    )


def capability_too_low(capability: tuple[int, int], lowest: tuple[int, int]) -> Problem:
    """The GPU is older than everything that TensorFlow was built for."""
    has, needs = (f"{major}.{minor}" for major, minor in (capability, lowest))
    return Problem(
        code="DEV-111",
        what=f"TensorFlow ignores it: compute capability {has} is too low.",
        why=f"the installed TensorFlow was built for {needs} and higher.",
        fix="use another GPU, or build TensorFlow for this one.",
    )


def no_driver(message: str) -> Problem:
    """There is no NVIDIA driver, usually because there is no GPU."""
    return Problem(
        code="DEV-112",
        what="No NVIDIA driver was found.",
        why=f"NVML says: {message}",
        fix="without an NVIDIA GPU, nothing (cpu:2 makes two stand-ins to try things); with one, "
        "install the NVIDIA driver, and start containers with --gpus all.",
    )


def not_in_spec(spec: str) -> Problem:
    """The device spec leaves the device out."""
    return Problem(
        code="DEV-113",
        what="Not in the device spec.",
        why=f"the device spec {spec!r} does not include it.",
        fix="add it to the spec, or use all.",
        by_choice=True,
    )


def unreadable(message: str) -> Problem:
    """NVML fails with another error."""
    return Problem(
        code="DEV-114",
        what="The NVIDIA driver could not be queried.",
        why=f"NVML says: {message}",
        fix="run `nvidia-smi` as the same user; it uses the same library.",
    )


def hidden_in_tensorflow() -> Problem:
    """The program itself hid the GPU."""
    return Problem(
        code="DEV-115",
        what="Hidden by tf.config.set_visible_devices.",
        why="this program removed it from the devices that TensorFlow may use.",
        fix="remove that call, or name the GPU in the device spec.",
        by_choice=True,
    )


def no_gpu() -> Problem:
    """The driver works and lists no GPU."""
    return Problem(
        code="DEV-116",
        what="No NVIDIA GPU was found.",
        why="the NVIDIA driver lists none, and TensorFlow sees none.",
        fix="give the container or virtual machine a GPU (--gpus all), or use cpu:2 for two "
        "stand-ins on the CPU.",
    )


# Matches the GPUs of TensorFlow's list with those of the driver's list.
#
# TensorFlow numbers the GPUs that CUDA shows it, subject to ``CUDA_VISIBLE_DEVICES``; the driver
# numbers all GPUs by their PCI address. TensorFlow reports no UUID before its runtime starts, so
# GPUs are matched by order and product. CUDA's own order puts the fastest first unless
# ``CUDA_DEVICE_ORDER=PCI_BUS_ID``; equal GPUs stay in the order of the bus either way, so that only
# the numbers of unequal GPUs can differ between the two lists.


def match_gpus(
    seen: Sequence[TensorFlowGpu], gpus: Sequence[NvmlGpu], visible_devices: str | None
) -> dict[int, NvmlGpu]:
    """Return the driver's GPU for each of TensorFlow's, by TensorFlow's number."""
    shown = shown_by_cuda(gpus, visible_devices)
    rest = [gpu for gpu in gpus if gpu not in shown]
    matched: dict[int, NvmlGpu] = {}
    # TensorFlow leaves GPUs out but keeps their order, so take the first that may be the same,
    # preferring those that CUDA_VISIBLE_DEVICES lets through.
    left = [gpu for gpu in (*shown, *rest) if gpu.failure is None]
    for gpu in seen:
        found = next((other for other in left if _may_be_same(gpu, other)), None)
        if found is not None:
            left.remove(found)
            matched[gpu.index] = found
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
        found = _named(word, gpus)
        if found is None:
            break
        shown.append(found)
    return tuple(shown)


def _named(word: str, gpus: Sequence[NvmlGpu]) -> NvmlGpu | None:
    if word.isdecimal():
        return next((gpu for gpu in gpus if gpu.index == int(word)), None)
    if not word.startswith("GPU-"):
        return None
    return next((gpu for gpu in gpus if (gpu.uuid or "").startswith(word)), None)


def _may_be_same(seen: TensorFlowGpu, gpu: NvmlGpu) -> bool:
    pairs = ((seen.name, gpu.name), (seen.compute_capability, gpu.compute_capability))
    return all(a is None or b is None or a == b for a, b in pairs)


# Rules for why TensorFlow does not list a GPU, and why a listed GPU is not used.

DEFAULT_MIN_FREE_BYTES = 512 * 2**20
DEFAULT_MIN_MULTIPROCESSORS = 8
# By the major number of CUDA, on Linux. Source: NVIDIA, CUDA Toolkit 12.9 Release Notes,
# table 2 "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version
# Compatibility"; NVIDIA, CUDA Compatibility, table 1.
MINIMUM_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The input of the rules."""

    machine: NvmlMachine  # The view of the driver
    view: TensorFlowView  # The view of TensorFlow
    min_free_bytes: int = DEFAULT_MIN_FREE_BYTES  # The free memory below which a GPU is not used


def why_not_listed(gpu: NvmlGpu, situation: Situation) -> Problem:
    """Return why TensorFlow does not list a GPU of the driver: the first rule that applies."""
    view = situation.view
    if gpu.failure is not None:
        return lost(gpu.failure)
    if not view.built_with_cuda:
        return cpu_only_wheel(view.version)
    visible = view.environment.visible_devices
    if visible is not None and gpu not in shown_by_cuda(situation.machine.gpus, visible):
        return hidden_by_cuda(visible)
    ignored = why_old_driver(situation) or _why_ignored(gpu, situation)
    if ignored is not None:
        return ignored
    if view.gpus:
        return not_seen(len(view.gpus), has_cuda_packages=True)
    return why_no_libraries(view)


def why_not_used(seen: TensorFlowGpu, gpu: NvmlGpu | None, situation: Situation) -> Problem | None:
    """Return why a GPU that TensorFlow lists is not used, or None."""
    old = why_old_driver(situation)
    if old is not None:
        return old
    free = gpu.memory_free_bytes if gpu is not None else None
    # Once the runtime has started, it may itself hold the memory.
    held_here = situation.view.runtime_initialised and seen.visible
    if free is not None and free < situation.min_free_bytes and not held_here:
        return not_enough_free_memory(free, situation.min_free_bytes)
    return None


def why_no_libraries(view: TensorFlowView) -> Problem:
    """Return why TensorFlow lists no GPU although build, driver and GPU are fine."""
    no_libraries = not_seen(0, has_cuda_packages=bool(view.cuda_12_packages))
    return why_cuda_13(view) or no_libraries


def why_cuda_13(view: TensorFlowView) -> Problem | None:
    """Return the problem of CUDA 13 libraries with a build for CUDA 12, or None."""
    if view.cuda_13_packages and _major(view.cuda_version) == 12:
        return cuda_13_packages(view.cuda_13_packages, view.cuda_version)
    return None


def why_old_driver(situation: Situation) -> Problem | None:
    """Return the problem of a driver too old for TensorFlow's CUDA, or None.

    A driver's library may be newer than the driver (NVIDIA's forward compatibility packages);
    then the CUDA version that the library knows counts.
    """
    machine, cuda = situation.machine, situation.view.cuda_version
    minimum = MINIMUM_DRIVERS.get(_major(cuda) or 0)
    if minimum is None or machine.driver_version is None:
        return None
    knows = machine.cuda_driver_version
    if knows is not None and knows[0] >= (_major(cuda) or 0):
        return None
    if version_numbers(machine.driver_version) >= version_numbers(minimum):
        return None
    return driver_too_old(machine.driver_version, minimum, cuda)


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


def _why_ignored(gpu: NvmlGpu, situation: Situation) -> Problem | None:
    view, machine = situation.view, situation.machine
    lowest, has = view.lowest_capability, gpu.compute_capability
    if lowest is not None and has is not None and has < lowest:
        return capability_too_low(has, lowest)
    shown = shown_by_cuda(machine.gpus, view.environment.visible_devices)
    counts = [other.num_multiprocessors for other in shown if other.num_multiprocessors]
    minimum = min_multiprocessors(counts, view.environment.min_multiprocessors)
    if gpu.num_multiprocessors is not None and gpu.num_multiprocessors < minimum:
        return too_few_multiprocessors(gpu.num_multiprocessors, minimum)
    return None


def _major(version: str | None) -> int | None:
    match = re.match(r"\d+", version or "")
    return int(match.group()) if match else None
