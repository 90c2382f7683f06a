"""Rules for why TensorFlow does not list a GPU, and why a listed GPU is not used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from evener.devices import problem
from evener.devices.match import shown_by_cuda
from evener.devices.nvml import NvmlGpu, NvmlMachine
from evener.devices.problem import Problem
from evener.devices.tensorflow_view import TensorFlowGpu, TensorFlowView
from evener.versions import version_numbers

DEFAULT_MIN_FREE_BYTES = 512 * 2**20
DEFAULT_MIN_MULTIPROCESSORS = 8
# By the major number of CUDA, on Linux. Source: NVIDIA, CUDA Toolkit 12.9 Release Notes,
# table 2 "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version
# Compatibility"; NVIDIA, CUDA Compatibility, table 1.
MINIMUM_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The input of the rules.

    Args:
        machine: The view of the driver.
        view: The view of TensorFlow.
        min_free_bytes: The free memory below which a GPU is not used.
    """

    machine: NvmlMachine
    view: TensorFlowView
    min_free_bytes: int = DEFAULT_MIN_FREE_BYTES


def why_not_listed(gpu: NvmlGpu, situation: Situation) -> Problem:
    """Return why TensorFlow does not list a GPU of the driver: the first rule that applies."""
    view = situation.view
    if gpu.failure is not None:
        return problem.lost(gpu.failure)
    if not view.built_with_cuda:
        return problem.cpu_only_wheel(view.version)
    visible = view.environment.visible_devices
    if visible is not None and gpu not in shown_by_cuda(situation.machine.gpus, visible):
        return problem.hidden_by_cuda(visible)
    ignored = why_old_driver(situation) or _why_ignored(gpu, situation)
    if ignored is not None:
        return ignored
    if view.gpus:
        return problem.not_seen(len(view.gpus), has_cuda_packages=True)
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
        return problem.not_enough_free_memory(free, situation.min_free_bytes)
    return None


def why_no_libraries(view: TensorFlowView) -> Problem:
    """Return why TensorFlow lists no GPU although build, driver and GPU are fine."""
    no_libraries = problem.not_seen(0, has_cuda_packages=bool(view.cuda_12_packages))
    return why_cuda_13(view) or no_libraries


def why_cuda_13(view: TensorFlowView) -> Problem | None:
    """Return the problem of CUDA 13 libraries with a build for CUDA 12, or None."""
    if view.cuda_13_packages and _major(view.cuda_version) == 12:
        return problem.cuda_13_packages(view.cuda_13_packages, view.cuda_version)
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
    return problem.driver_too_old(machine.driver_version, minimum, cuda)


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
        return problem.capability_too_low(has, lowest)
    shown = shown_by_cuda(machine.gpus, view.environment.visible_devices)
    counts = [other.num_multiprocessors for other in shown if other.num_multiprocessors]
    minimum = min_multiprocessors(counts, view.environment.min_multiprocessors)
    if gpu.num_multiprocessors is not None and gpu.num_multiprocessors < minimum:
        return problem.too_few_multiprocessors(gpu.num_multiprocessors, minimum)
    return None


def _major(version: str | None) -> int | None:
    match = re.match(r"\d+", version or "")
    return int(match.group()) if match else None
