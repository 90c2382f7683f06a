"""Device names: TensorFlow's (``/device:GPU:1``) and evener's (``gpu:1``).

Only the text of a name is read: whether the device exists is for the callers to check.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass


def device_name(tf_name: str) -> str:
    """Return evener's name of a device, without its machine; ``"cpu:0"`` if no device is named."""
    parts = _parse(tf_name)
    return f"{parts.kind.lower()}:{parts.index}" if parts.kind else "cpu:0"


def qualified_name(tf_name: str) -> str | None:
    """Return evener's name of a device, with its machine if that is not this one."""
    parts = _parse(tf_name)
    if not parts.kind:
        return None
    name = device_name(tf_name)
    return name if parts.job in ("", "localhost") else f"{parts.job}:{parts.task}/{name}"


def tf_device(name: str) -> str:
    """Return TensorFlow's name of a device in its own process."""
    kind, _, index = name.rpartition("/")[2].partition(":")
    return f"/device:{kind.upper()}:{index}"


def without_worker(name: str) -> str:
    """Return evener's name of a device without its worker.

    >>> without_worker("worker:1/gpu:0"), without_worker("cpu:0")
    ('gpu:0', 'cpu:0')
    """
    return name.rpartition("/")[2]


def canonical_device(tf_name: str) -> str:
    """Return the one form of TensorFlow's names of a device; ``""`` if no device is named."""
    parts = _parse(tf_name)
    return f"/device:{parts.kind}:{parts.index}" if parts.kind else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    job: str = ""
    task: int = 0
    kind: str = ""
    index: int = 0


@functools.cache
def _parse(tf_name: str) -> _Parts:
    """Parse a name as `tf.DeviceSpec.from_string` does; an index that is not given is 0."""
    job, task, kind, index = "", "0", "", "0"
    for part in tf_name.split("/"):
        key, _, value = part.partition(":")
        if key == "job":
            job = value
        elif key == "task":
            task = value
        elif key and key != "replica":
            kind, _, index = part.removeprefix("device:").partition(":")
    return _Parts(
        job=job,
        task=int(task) if task.isdecimal() else 0,
        kind=kind.upper(),
        index=int(index) if index.isdecimal() else 0,
    )
