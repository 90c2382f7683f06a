"""Plan in numbers: the layers of a profiled model that each device computes and owns.

A `Plan` names devices and layers by patterns; an `Assignment` has their indices, for one model and
one batch size. The planner works on assignments.
"""

from __future__ import annotations

from dataclasses import dataclass

from evener.plan.parts import (
    ScheduleName,
)

HOST_OWNER = -1
"""Owner instead of a device index: a layer's variables live in host memory."""

EACH_MACHINE = -2
"""Owner instead of a device index: each machine has a copy of the layer's variables, sharded over
those of its devices that compute the layer; gradients are all-reduced between machines."""


@dataclass(frozen=True, slots=True)
class Span:
    """Layers from ``first`` up to, but without, ``end``, on one device.

    Args:
        device: Device index in the cluster.
        first: Index of the first layer.
        end: Index of the last layer, plus 1.
    """

    device: int
    first: int
    end: int

    @property
    def layers(self) -> range:
        """The indices of the layers."""
        return range(self.first, self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAssignment:
    """Work of one replica.

    Args:
        samples: Samples per global batch, above 0.
        spans: Stages in order; together they have all layers.
        num_micro_batches: Micro-batches per step, at least 1.
        in_flight: Most micro-batches that are alive at once, at least 1.
        schedule: Schedule of the pipeline.
    """

    samples: int
    spans: tuple[Span, ...]
    num_micro_batches: int = 1
    in_flight: int = 1
    schedule: ScheduleName = "1f1b"

    @property
    def devices(self) -> tuple[int, ...]:
        """The device index of each stage."""
        return tuple(span.device for span in self.spans)

    @property
    def micro_batch(self) -> float:
        """The samples of a micro-batch; the mean if they do not divide evenly."""
        return self.samples / self.num_micro_batches

    @property
    def accumulations(self) -> float:
        """Mean gradient additions per micro-batch; the first micro-batch needs none."""
        return 1 - 1 / self.num_micro_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Layers that each device computes and owns.

    Args:
        replicas: Replicas with at least one sample.
        owners: Owner of each layer's variables: a device index, `HOST_OWNER` or `EACH_MACHINE`.
        recompute: Whether the activations of each layer are recomputed.
        has_barriers: Whether reductions over the global batch are barriers; False if
            `BatchNormalization` normalizes per device.
    """

    replicas: tuple[ReplicaAssignment, ...]
    owners: tuple[int, ...]
    recompute: tuple[bool, ...]
    has_barriers: bool = True

    @property
    def batch_size(self) -> int:
        """The samples of the global batch."""
        return sum(replica.samples for replica in self.replicas)
