"""A note on errors of TensorFlow's that say that a device ran out of memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import tensorflow as tf

from evener.auditing.gathered import GatheredOperation
from evener.devices.names import device_name
from evener.errors import EngineError
from evener.units import format_bytes

_DEVICE = re.compile(r"/device:[A-Z]+:\d+")
_MOST_OPERATIONS = 3


def add_note_on_memory(
    error: tf.errors.ResourceExhaustedError,
    *,
    devices: Sequence[str],
    shares: Sequence[float],
    owned_bytes: Mapping[str, int],
    gathered: Sequence[GatheredOperation],
) -> None:
    """Add ENG-050 to an error: what fills the memory of the device, and what makes it less.

    The error stays what it is. A step is not repeated with less: some of its variables may have
    been updated already.

    Args:
        error: TensorFlow's; its message names the device.
        devices: The devices that compute, such as ``"gpu:0"``.
        shares: The part of every batch that each of them computes; sums to 1.
        owned_bytes: Bytes of the variables that each device owns.
        gathered: What is computed once, of the samples of all.
    """
    found = _DEVICE.search(error.message)
    name = device_name(found.group()) if found else ""
    share = sum(one for device, one in zip(devices, shares, strict=True) if device == name)
    parts = [f"variables that it owns ({format_bytes(owned_bytes.get(name, 0))})"]
    if share:
        parts.append(f"activations of its {share:.0%} of every batch, and weights of other owners")
    if gathered:
        names = ", ".join(str(one) for one in gathered[:_MOST_OPERATIONS])
        parts.append(f"what is computed once of the samples of all devices ({names})")
    others = ", ".join(repr(device) for device in devices)
    advice = EngineError(
        "ENG-050",
        f"{name or 'A device'} ran out of memory in a step.",
        why=f"It holds {'; '.join(parts)}. Activations are most of it where batches are large.",
        fix="compute fewer samples at once, with the same results: "
        f"plan=evener.Plan.data_parallel([{others}], num_micro_batches=4); or give "
        f"{name or 'the device'} a smaller share; or recompute activations (docs/pipelines.md).",
    )
    error.add_note(str(advice))
