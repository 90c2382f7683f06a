"""Matches the GPUs of TensorFlow's list with those of the driver's list.

TensorFlow numbers the GPUs that CUDA shows it, subject to ``CUDA_VISIBLE_DEVICES``; the driver
numbers all GPUs by their PCI address. TensorFlow reports no UUID before its runtime starts, so
GPUs are matched by order and product. CUDA's own order puts the fastest first unless
``CUDA_DEVICE_ORDER=PCI_BUS_ID``; equal GPUs stay in the order of the bus either way, so that only
the numbers of unequal GPUs can differ between the two lists.
"""

from __future__ import annotations

from collections.abc import Sequence

from evener.devices.nvml import NvmlGpu
from evener.devices.tensorflow_view import TensorFlowGpu


def match_gpus(
    seen: Sequence[TensorFlowGpu], gpus: Sequence[NvmlGpu], visible_devices: str | None
) -> dict[int, NvmlGpu]:
    """Return the driver's GPU for each of TensorFlow's, by TensorFlow's number.

    Args:
        seen: The GPUs that TensorFlow lists.
        gpus: The GPUs that the driver lists.
        visible_devices: ``CUDA_VISIBLE_DEVICES``, or None if it is not set.
    """
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
