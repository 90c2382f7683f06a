"""Memory of data parallel training by kind, and the largest batch that fits into memory.

::

    bytes
      |                     ___---  workspace      )
      |             ___---          samples        )  grow with the samples of a micro-batch
      |     ___---                  activations    )
      |_________________________    gradients
      |_________________________    weights, optimizer state: on one device, or sharded
      +------------------------- samples

No times are needed for it, hence no device.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from dataclasses import dataclass

from evener.cost_model.assignment import Assignment, ReplicaAssignment, Span
from evener.cost_model.memory import predict_memory
from evener.cost_model.ownership import spread_owners
from evener.cost_model.stage_memory import entering_bytes
from evener.profile import Cluster, ClusterDevice, ModelCosts

MOST_SAMPLES = 2**20
"""Largest batch size that is tried."""
_GIB = 2**30
_LARGE_CARD = 40 * _GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Ways to save memory at the cost of time.

    Args:
        num_micro_batches: Micro-batches per device, at least 1; they are computed one after the
            other.
        recompute: Whether the backward pass recomputes every layer whose activations are larger
            than its inputs.
    """

    num_micro_batches: int = 1
    recompute: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryByKind:
    """Peak memory of a step on one device, in bytes.

    Args:
        weights: Trained weights that the device owns.
        optimizer_state: Optimizer state of these weights.
        other_variables: Variables that are not trained, such as moving means.
        fetched: Weights fetched from other owners.
        gradients: Gradients of the device, accumulated and of the current micro-batch, and those
            that other devices send for the weights that it owns.
        activations: Tensors saved by forward passes for backward passes.
        samples: Input samples of its share of the batch.
        workspace: Temporary tensors of the layer that is being computed.
    """

    weights: int
    optimizer_state: int
    other_variables: int
    fetched: int
    gradients: int
    activations: int
    samples: int
    workspace: int

    @property
    def total(self) -> int:
        """The sum of all kinds."""
        return sum(dataclasses.asdict(self).values())


def estimate_memory(
    model: ModelCosts, batch_size: int, way: Way | None = None, *, num_devices: int = 1
) -> MemoryByKind:
    """Return the peak memory of the device that needs the most.

    Every device has the same share of the batch, and the variables are sharded over the devices as
    the engine does it. The number of samples of a micro-batch is rounded up.

    Args:
        model: Costs of the layers.
        batch_size: Samples of the global batch, at least 1.
        way: Ways to save memory; None for one micro-batch without recomputation.
        num_devices: Number of devices, at least 1; all of one kind, in one machine.

    Example:
        >>> from evener.clusters import model_named
        >>> found = estimate_memory(model_named("resnet-50").costs, 32)
        >>> found.optimizer_state == 2 * found.weights
        True
    """
    way = way or Way()
    num_used = min(num_devices, batch_size)
    samples = math.ceil(math.ceil(batch_size / num_used) / way.num_micro_batches)
    return _fullest(model, samples, way, num_used)


def largest_batch(
    model: ModelCosts, memory_bytes: int, way: Way | None = None, *, num_devices: int = 1
) -> int:
    """Return the largest global batch size that fits, up to `MOST_SAMPLES`.

    Args:
        model: Costs of the layers.
        memory_bytes: Usable memory of each device.
        way: Ways to save memory; None for one micro-batch without recomputation.
        num_devices: Number of devices, at least 1; all of one kind, in one machine.

    Returns:
        A multiple of the number of micro-batches on all devices; 0 if even one sample per
        micro-batch does not fit.
    """
    way = way or Way()
    at_once = num_devices * way.num_micro_batches

    def fits(samples: int) -> bool:
        return _fullest(model, samples, way, num_devices).total <= memory_bytes

    candidates = range(1, max(1, MOST_SAMPLES // at_once) + 1)
    return at_once * bisect.bisect_left(candidates, True, key=lambda samples: not fits(samples))


def usable_memory(total_bytes: int) -> int:
    """Return the bytes of a device's memory that a plan may use.

    The driver and libraries take 1 GiB, or 2 GiB on a device of 40 GiB or more, as in the clusters
    that evener knows.

    >>> usable_memory(24 * 2**30) == 23 * 2**30
    True
    """
    taken = 2 if total_bytes >= _LARGE_CARD else 1
    return max(0, total_bytes - taken * _GIB)


def recomputed_layers(model: ModelCosts) -> tuple[bool, ...]:
    """Return for each layer whether its saved activations are larger than its inputs."""
    return tuple(
        layer.activation_bytes > entering_bytes(model, index)
        for index, layer in enumerate(model.layers)
    )


def _fullest(model: ModelCosts, samples: int, way: Way, num_devices: int) -> MemoryByKind:
    """Return the memory of the fullest device.

    Args:
        model: Costs of the layers.
        samples: Samples of each micro-batch.
        way: Ways to save memory.
        num_devices: Number of devices.
    """
    layers = model.layers
    cluster = Cluster(
        devices=tuple(ClusterDevice(name=f"gpu:{k}", type="gpu") for k in range(num_devices))
    )
    replicas = tuple(
        ReplicaAssignment(
            samples=samples * way.num_micro_batches,
            spans=(Span(device, 0, len(layers)),),
            num_micro_batches=way.num_micro_batches,
        )
        for device in range(num_devices)
    )
    assignment = Assignment(
        replicas=replicas,
        owners=spread_owners(layers, replicas, cluster),
        recompute=recomputed_layers(model) if way.recompute else (False,) * len(layers),
    )
    needs = predict_memory(assignment, model, cluster, [(1,)] * num_devices)
    device = max(needs, key=lambda index: needs[index].total)
    found = needs[device]
    owned = [
        layer for layer, owner in zip(layers, assignment.owners, strict=True) if owner == device
    ]
    # All samples of a step are sent at its start; at the moment of the peak some may be gone.
    sent = model.input_bytes * samples * way.num_micro_batches
    of_samples = min(sent, found.activations)
    return MemoryByKind(
        weights=sum(layer.weight_bytes for layer in owned),
        optimizer_state=sum(layer.optimizer_bytes for layer in owned),
        other_variables=sum(layer.state_bytes for layer in owned),
        fetched=round(found.fetched),
        gradients=round(found.gradients),
        activations=round(found.activations - of_samples),
        samples=round(of_samples),
        workspace=round(found.workspace),
    )
