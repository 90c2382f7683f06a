"""Two layers whose costs can be added up by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from evener.planner.assignment import Assignment, ReplicaAssignment, Span
from evener.profile import (
    Cluster,
    ClusterDevice,
    CostProfile,
    Curve,
    LayerCosts,
    LayerTimes,
    Link,
    Machine,
    ModelCosts,
)

LAYERS = (
    LayerCosts(
        name="a",
        weight_bytes=100,
        optimizer_bytes=200,
        state_bytes=10,
        activation_bytes=4,
        boundary_bytes=2,
        workspace_bytes=3,
    ),
    LayerCosts(
        name="b",
        weight_bytes=60,
        optimizer_bytes=120,
        activation_bytes=8,
        boundary_bytes=1,
        workspace_bytes=5,
    ),
)

MODEL = ModelCosts(name="two", layers=LAYERS, input_bytes=1)
FREE = Link()
SLOW = Link(bytes_per_second=10.0, latency_seconds=0.5)


def cluster_of(
    *counts: int,
    link: Link = SLOW,
    shares_link: bool = False,
    memory: Sequence[int | None] | None = None,
    host_memory_bytes: int | None = None,
) -> Cluster:
    """Return machines with so many devices; 20 bytes per second from the host, 4 between them."""
    places = [(machine, number) for machine, count in enumerate(counts) for number in range(count)]
    sizes = [None] * len(places) if memory is None else memory
    return Cluster(
        devices=tuple(
            ClusterDevice(
                name=f"worker:{machine}/gpu:{number}" if len(counts) > 1 else f"gpu:{number}",
                type="one",
                memory_bytes=size,
                machine=machine,
            )
            for (machine, number), size in zip(places, sizes, strict=True)
        ),
        machines=(
            Machine(
                link=link,
                host_link=Link(bytes_per_second=20.0),
                host_memory_bytes=host_memory_bytes,
                host_update_bytes_per_second=1140.0,
                shares_link=shares_link,
            ),
        )
        * len(counts),
        network=Link(bytes_per_second=4.0, latency_seconds=1.0),
    )


def profile_of(cluster: Cluster, overhead: float = 0.0) -> CostProfile:
    """Return costs in which a sample takes 1 and 2 s forward, 2 and 4 s backward."""
    times = tuple(
        LayerTimes(
            forward=Curve(((1, seconds),)),
            backward=Curve(((1, 2 * seconds),)),
            update_seconds=update,
        )
        for seconds, update in ((1.0, 0.5), (2.0, 0.25))
    )
    return CostProfile(
        model=MODEL, cluster=cluster, times={"one": times}, step_overhead_seconds=overhead
    )


def whole(
    device: int, samples: int = 2, num_micro_batches: int = 1, in_flight: int = 1
) -> ReplicaAssignment:
    """Return a replica of one stage."""
    return ReplicaAssignment(
        samples=samples,
        spans=(Span(device, 0, 2),),
        num_micro_batches=num_micro_batches,
        in_flight=in_flight,
    )


def assigned(
    *replicas: ReplicaAssignment, owners: tuple[int, int], recompute: bool = False
) -> Assignment:
    """Return an assignment; `recompute` is for layer b alone."""
    return Assignment(replicas=replicas, owners=owners, recompute=(False, recompute))


def barrier(
    profile: CostProfile, place: int, *, forward: int = 2, backward: int = 1, waiting: float = 0
) -> CostProfile:
    """Return a profile in which the parts of a batch meet at one of the two layers."""
    layers = list(profile.model.layers)
    layers[place] = dataclasses.replace(
        layers[place],
        forward_barriers=forward,
        backward_barriers=backward,
        barrier_bytes=waiting,
    )
    model = dataclasses.replace(profile.model, layers=tuple(layers))
    return dataclasses.replace(profile, model=model)


def pipeline(num_micro_batches: int, in_flight: int = 2) -> ReplicaAssignment:
    return ReplicaAssignment(
        samples=num_micro_batches,
        spans=(Span(0, 0, 1), Span(1, 1, 2)),
        num_micro_batches=num_micro_batches,
        in_flight=in_flight,
    )
