"""Names and kinds of devices: TensorFlow's (``/device:GPU:1``) and evener's (``gpu:1``).

Only the text of a name is read: whether the device exists is for the callers to check.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal, NamedTuple

KindName = Literal["gpu", "cpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """Kind of device: whatever differs between devices beyond their names is asked here."""

    name: KindName
    # Otherwise its tensors are in the memory of the host, which all devices of the kind share.
    has_own_memory: bool
    # Otherwise it computes on the cores of the host: threads, affinity and the clock are shared.
    has_own_processor: bool
    # Whether TensorFlow may round the inputs of float32 products to TensorFloat-32.
    has_tensor_float_32: bool


GPU = DeviceKind(name="gpu", has_own_memory=True, has_own_processor=True, has_tensor_float_32=True)
CPU = DeviceKind(
    name="cpu", has_own_memory=False, has_own_processor=False, has_tensor_float_32=False
)


def kind_of(name: str) -> DeviceKind:
    """Return the kind of a device by its name, in any form of TensorFlow or evener.

    >>> kind_of("worker:1/gpu:0").name, kind_of("/job:worker/task:2/device:CPU:0").name
    ('gpu', 'cpu')
    """
    return GPU if _parse(without_worker(name)).kind.lower() == GPU.name else CPU


def device_name(tf_name: str) -> str:
    """Return evener's name of a device, without its machine; ``"cpu:0"`` if no device is named.

    >>> device_name("/job:localhost/replica:0/task:0/device:GPU:1"), device_name("")
    ('gpu:1', 'cpu:0')
    """
    parts = _parse(tf_name)
    return f"{parts.kind.lower()}:{parts.number}" if parts.kind else "cpu:0"


def qualified_name(tf_name: str) -> str | None:
    """Return evener's name of a device, with its machine if that is not this one.

    >>> qualified_name("/job:localhost/replica:0/task:0/device:CPU:1"), qualified_name("/gpu:0")
    ('cpu:1', 'gpu:0')
    >>> qualified_name("/job:worker/task:2/device:GPU:0"), qualified_name("/job:worker/task:2")
    ('worker:2/gpu:0', None)
    """
    parts = _parse(tf_name)
    if not parts.kind:
        return None
    name = device_name(tf_name)
    return name if parts.job in ("", "localhost") else f"{parts.job}:{parts.task}/{name}"


def tf_device(name: str) -> str:
    """Return TensorFlow's name, in its own process, of a device of evener's name.

    >>> tf_device("gpu:1"), tf_device("worker:1/gpu:0")
    ('/device:GPU:1', '/device:GPU:0')
    """
    return f"/device:{without_worker(name).upper()}"


def without_worker(name: str) -> str:
    """Return evener's name of a device without its worker.

    >>> without_worker("worker:1/gpu:0"), without_worker("cpu:0")
    ('gpu:0', 'cpu:0')
    """
    return name.rpartition("/")[2]


def canonical_device(tf_name: str) -> str:
    """Return the one form of TensorFlow's names of a device; ``""`` if no device is named.

    >>> canonical_device("/job:localhost/replica:0/task:0/device:GPU:1"), canonical_device("/cpu:0")
    ('/device:GPU:1', '/device:CPU:0')
    """
    parts = _parse(tf_name)
    return f"/device:{parts.kind}:{parts.number}" if parts.kind else ""


class _Parts(NamedTuple):
    job: str
    task: int
    kind: str
    number: int


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
    task_number, number = (int(text) if text.isdecimal() else 0 for text in (task, index))
    return _Parts(job, task_number, kind.upper(), number)
