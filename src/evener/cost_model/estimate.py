"""The memory of data parallel training, by kind, and the largest batch that a memory size holds.

::

    bytes
      |                     ___---  workspace      )
      |             ___---          samples        )  grow with the samples of a micro-batch
      |     ___---                  activations    )
      |_________________________    gradients
      |_________________________    weights, optimizer state: of one device, or divided
      +------------------------- samples

Times are not needed for it, so no device is.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from dataclasses import dataclass

from evener.cost_model.assignment import Assignment, ReplicaAssignment, Span, spread_owners
from evener.cost_model.memory import predict_memory
from evener.cost_model.stage_memory import entering_bytes
from evener.profile import Cluster, ClusterDevice, ModelCosts

MOST_SAMPLES = 2**20
"""The largest batch that is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to train with less memory, at the price of time.

    Args:
        num_micro_batches: Into how many micro-batches the samples of each device are split, at
            least 1; they are computed one after the other.
        recompute: Whether each layer that keeps more than it reads is computed again in the
            backward pass.
    """

    num_micro_batches: int = 1
    recompute: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryByKind:
    """What a step needs on a device at its worst moment, in bytes.

    Args:
        weights: Trained weights that the device owns.
        optimizer_state: Of these weights.
        other_variables: That are not trained, such as moving means.
        fetched: Weights of other owners.
        gradients: Its own sums, those of the next micro-batch, and those that arrive for the
            weights that it owns.
        activations: What is kept from forward to backward passes.
        samples: Of its share of the batch.
        workspace: What is needed only while a layer is computed.
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
        """All of it."""
        return sum(dataclasses.asdict(self).values())


def estimate_memory(
    model: ModelCosts, batch_size: int, way: Way | None = None, *, num_devices: int = 1
) -> MemoryByKind:
    """Return what a step needs on the device that needs the most.

    Each device has an even share of the batch, and variables are spread over the devices as the
    engine does it. Shares that do not divide are rounded up: the largest micro-batch counts.

    Args:
        model: The costs of its layers.
        batch_size: Samples of the global batch, at least 1.
        way: By default one micro-batch, and nothing computed again.
        num_devices: Devices of one kind, in one machine, at least 1.

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
    """Return the most samples of a global batch that fit, up to `MOST_SAMPLES`.

    Args:
        model: The costs of its layers.
        memory_bytes: What a plan may use of each device.
        way: By default one micro-batch, and nothing computed again.
        num_devices: Devices of one kind, in one machine, at least 1.

    Returns:
        A multiple of the number of micro-batches of all devices together; 0 if one sample in each
        of them does not fit.
    """
    way = way or Way()
    at_once = num_devices * way.num_micro_batches

    def fits(samples: int) -> bool:
        return _fullest(model, samples, way, num_devices).total <= memory_bytes

    candidates = range(1, max(1, MOST_SAMPLES // at_once) + 1)
    return at_once * bisect.bisect_left(candidates, True, key=lambda one: not fits(one))


def recomputed_layers(model: ModelCosts) -> tuple[bool, ...]:
    """Return for each layer whether it keeps more for its backward pass than it reads."""
    return tuple(
        layer.activation_bytes > entering_bytes(model, place)
        for place, layer in enumerate(model.layers)
    )


def _fullest(model: ModelCosts, samples: int, way: Way, num_devices: int) -> MemoryByKind:
    """Return the needs of the fullest device for so many samples in each micro-batch."""
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
    device = max(needs, key=lambda place: needs[place].total)
    found = needs[device]
    owned = [
        layer for layer, owner in zip(layers, assignment.owners, strict=True) if owner == device
    ]
    # All samples of a step are there from its begin.
    of_samples = model.input_bytes * samples * way.num_micro_batches
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
