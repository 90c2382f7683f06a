"""Owners of variables, chosen when a variable is made.

A variable and its optimizer slots live once. The owner is chosen before the variable
exists, so that it is never first made on another device.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from evener._tf_private.tensors import explicit_device, keras_variable_being_made
from evener.devices.names import device_name, tf_device, without_worker
from evener.errors import EngineError, did_you_mean
from evener.plan import HOST_DEVICE, Plan, computing_devices

# Counters, learning rates and metric sums: moving them to a device would only cost a trip. And
# where data end within a step, TensorFlow computes what does not need the batch: on another device
# that is a race.
_SMALL_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedVariable:
    path: str
    device: str
    num_bytes: int
    is_trainable: bool


class OwnerRegistry:
    def __init__(
        self,
        plan: Plan,
        devices: Sequence[str],
        own_name: Callable[[str], str] = lambda device: device,
        *,
        all_alike: bool = False,
    ) -> None:
        self._plan, self._own_name, self._all_alike = plan, own_name, all_alike
        self._devices = tuple(devices)
        # Bytes of all variables by their owners, and of those that are gone.
        self._load = dict.fromkeys(devices, 0)
        self._gone: Counter[str] = Counter()
        self._capacity = {without_worker(d.name): d.memory_bytes or 0 for d in plan.devices}
        # Owners in the common partition of several workers, by the ids of the handles.
        self._common: dict[int, str] = {}
        self._variables: dict[str, OwnedVariable] = {}
        self._ends: dict[str, weakref.finalize[Any, Any]] = {}

    @property
    def variables(self) -> tuple[OwnedVariable, ...]:
        return tuple(self._variables.values())

    def owned_bytes(self) -> dict[str, int]:
        """Return the bytes of variables on each device; of those that still exist."""
        owned: Counter[str] = Counter({HOST_DEVICE: 0})
        for device, num_bytes in self._load.items():
            owned[self._own(device)] += num_bytes - self._gone[device]
        return dict(owned)

    def common_owner(self, handle: Any) -> str | None:
        """Return TensorFlow's name of the owner in the common partition, by a handle."""
        device = self._common.get(id(handle))
        return None if device is None else tf_device(device)

    def _own(self, device: str) -> str:
        return device if device == HOST_DEVICE else self._own_name(device)

    def holds(self, variable: tf.Variable) -> bool:
        return variable._unique_id in self._variables

    def create(self, next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        beside = kwargs.pop("colocate_with", None)
        made = keras_variable_being_made(kwargs.get("initial_value"))
        path = made.path if made is not None else kwargs.get("name") or "variable"
        if beside is not None:
            # That of all workers: where this one has fewer devices, its own is another one.
            known = self._common.get(id(beside.handle))
            device = device_name(beside.device) if known is None else known
        elif explicit_device():
            device = device_name(explicit_device())
        else:
            device = self._owner(path, _spec_before(made, kwargs), kwargs.get("trainable"))
        with tf.device(tf_device(self._own(device))):
            variable = next_creator(**kwargs)
        num_bytes = _num_bytes(variable.shape, variable.dtype)
        self._variables[variable._unique_id] = OwnedVariable(
            path=path,
            device=self._own(device),
            num_bytes=num_bytes,
            is_trainable=variable.trainable,
        )
        handle = id(variable.handle)
        self._common[handle] = device
        self._load[device] = self._load.get(device, 0) + num_bytes
        end = weakref.finalize(variable, self._release, device, num_bytes, handle)
        end.atexit = False
        self._ends[variable._unique_id] = end
        return variable

    def _release(self, device: str, num_bytes: int, handle: int) -> None:
        """Stop counting a variable that is gone: its device has room for others."""
        self._common.pop(handle, None)
        self._gone[device] += num_bytes

    def forget(self, variable: tf.Variable) -> None:
        """Take a variable out whose place another one has taken."""
        if self._variables.pop(variable._unique_id, None) is not None:
            self._ends.pop(variable._unique_id)()

    def _owner(self, path: str, spec: tf.TensorSpec | None, trainable: bool | None) -> str:
        is_spread = self._plan.owners == "sharded"
        if spec is not None and len(self._devices) > 1:
            is_small = not trainable and _num_bytes(spec.shape, spec.dtype) <= _SMALL_BYTES
            # An optimizer's own number may be marked as trainable, such as that of Nadam.
            if is_small or (is_spread and spec.shape.rank == 0):
                return HOST_DEVICE
        if self._plan.owners == "central":
            return HOST_DEVICE
        if is_spread and not self._plan.is_staged:
            return min(self._devices, key=self._fullness)
        named = self._plan.owner_of(path)
        if named is not None:
            return without_worker(named)
        if self._plan.is_staged:
            computing = [*map(without_worker, computing_devices(path, self._plan.replicas))]
            return min(computing or self._devices, key=self._fullness)
        rules = () if isinstance(self._plan.owners, str) else self._plan.owners
        patterns = [rule.pattern for rule in rules]
        raise EngineError(
            "ENG-010",
            f"The variable {path!r} has no owner.",
            why=f"No pattern of the plan's owners matches it: {', '.join(patterns)}."
            + did_you_mean(path, patterns),
            fix="Add a rule for it, or end the rules with '*' and a device.",
        )

    def _fullness(self, device: str) -> float:
        """Return the fullness of a device; variables go to the emptiest one: list scheduling.

        Source: R. L. Graham, Bounds on Multiprocessing Timing Anomalies (1969), section 2:
        never worse than 2 - 1/m times the best split.
        """
        smallest = min((c for c in self._capacity.values() if c), default=0)
        capacity = self._capacity.get(device) or smallest or 1
        counted = self._load[device] - (0 if self._all_alike else self._gone[device])
        return counted / capacity


def _spec_before(made: Any | None, kwargs: dict[str, Any]) -> tf.TensorSpec | None:
    """Return the shape and dtype of a variable that is not made yet; None if nobody can tell."""
    if made is not None:
        return tf.TensorSpec(made.shape, tf.as_dtype(made.dtype))
    value = kwargs.get("initial_value")
    if value is None or callable(value):
        return None
    tensor = tf.convert_to_tensor(value, dtype=kwargs.get("dtype"))
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _num_bytes(shape: Any, dtype: tf.DType) -> int:
    return math.prod(int(n or 0) for n in shape) * (dtype.size or 0)
