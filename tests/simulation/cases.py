"""Drawn profiles and assignments: small clusters of unequal devices, layers of unequal size."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from hypothesis import strategies as st

from evener.planner.assignment import (
    EACH_MACHINE,
    HOST_OWNER,
    Assignment,
    ReplicaAssignment,
    Span,
    crosses_machines,
    holders_of,
)
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

FREE = Link()
TYPES = ("fast", "slow")


def link(bytes_per_second: float, latency_seconds: float = 0.0) -> Link:
    return Link(bytes_per_second=bytes_per_second, latency_seconds=latency_seconds)


def with_links(profile: CostProfile, *, factor: float) -> CostProfile:
    def other(slow_link: Link) -> Link:
        latency = 0.0 if math.isinf(factor) else slow_link.latency_seconds
        return link(slow_link.bytes_per_second * factor, latency)

    machines = tuple(
        dataclasses.replace(machine, link=other(machine.link), host_link=other(machine.host_link))
        for machine in profile.cluster.machines
    )
    cluster = dataclasses.replace(
        profile.cluster, machines=machines, network=other(profile.cluster.network)
    )
    return dataclasses.replace(profile, cluster=cluster)


@st.composite
def links(draw: st.DrawFn) -> Link:
    return link(10 ** draw(st.floats(9, 11)), draw(st.sampled_from((0.0, 1e-5))))


@st.composite
def clusters(draw: st.DrawFn, *, max_machines: int = 3, max_devices: int = 3) -> Cluster:
    counts = draw(st.lists(st.integers(1, max_devices), min_size=1, max_size=max_machines))
    return Cluster(
        devices=tuple(
            ClusterDevice(
                name=f"worker:{machine}/gpu:{number}",
                type=draw(st.sampled_from(TYPES)),
                machine=machine,
            )
            for machine, count in enumerate(counts)
            for number in range(count)
        ),
        machines=tuple(
            Machine(link=draw(links()), host_link=draw(links()), shares_link=draw(st.booleans()))
            for _ in counts
        ),
        network=draw(links()),
    )


@st.composite
def profiles(draw: st.DrawFn, cluster: Cluster, *, max_layers: int = 7) -> CostProfile:
    num_layers = draw(st.integers(1, max_layers))
    layers = tuple(
        LayerCosts(
            name=f"layer_{number}",
            weight_bytes=draw(st.sampled_from((0, 10**6, 10**7, 10**8))),
            optimizer_bytes=draw(st.sampled_from((0, 10**6))),
            activation_bytes=draw(st.sampled_from((0.0, 1e5, 1e6))),
            boundary_bytes=draw(st.sampled_from((0.0, 1e4, 1e6))),
            workspace_bytes=draw(st.sampled_from((0.0, 1e6))),
        )
        for number in range(num_layers)
    )
    base = draw(st.lists(st.floats(1e-5, 1e-2), min_size=num_layers, max_size=num_layers))
    times = {
        name: tuple(
            LayerTimes(
                forward=Curve(((1, seconds * factor), (8, 4 * seconds * factor))),
                backward=Curve(((1, 2 * seconds * factor), (8, 9 * seconds * factor))),
                update_seconds=seconds * factor / 10,
            )
            for seconds in base
        )
        for name, factor in zip(TYPES, (1.0, 2.5), strict=True)
    }
    model = ModelCosts(name="drawn", layers=layers, input_bytes=1e4)
    return CostProfile(model=model, cluster=cluster, times=times)


@st.composite
def replicas(draw: st.DrawFn, devices: Sequence[int], num_layers: int) -> ReplicaAssignment:
    """A replica with one stage for each device, as far as there are layers."""
    used = list(devices)[:num_layers]
    cuts = sorted(draw(st.permutations(range(1, num_layers)))[: len(used) - 1])
    ends = [0, *cuts, num_layers]
    num_micro_batches = draw(st.integers(1, 5))
    return ReplicaAssignment(
        samples=draw(st.integers(num_micro_batches, 32)),
        spans=tuple(
            Span(device, first, end)
            for device, first, end in zip(used, ends[:-1], ends[1:], strict=True)
        ),
        num_micro_batches=num_micro_batches,
        in_flight=draw(st.integers(1, num_micro_batches)),
        schedule=draw(st.sampled_from(("1f1b", "gpipe"))),
    )


@st.composite
def cases(
    draw: st.DrawFn, *, max_machines: int = 3, host: bool = True, rings: bool = True
) -> tuple[Assignment, CostProfile]:
    """Every layout: replicas of one stage or several, owners anywhere, or in each machine."""
    profile = draw(profiles(draw(clusters(max_machines=max_machines))))
    num_devices, num_layers = len(profile.cluster.devices), len(profile.model.layers)
    places = draw(st.permutations(range(num_devices)))
    cuts = sorted(draw(st.sets(st.integers(1, num_devices), max_size=num_devices)) | {num_devices})
    groups = [places[a:b] for a, b in zip([0, *cuts[:-1]], cuts, strict=True)]
    drawn = tuple(draw(replicas(group, num_layers)) for group in groups)
    owners: list[int] = []
    for held_by in holders_of(drawn, num_layers):
        choices = [*range(num_devices), *([HOST_OWNER] if host else [])]
        if rings and crosses_machines(held_by, profile.cluster):
            choices += [EACH_MACHINE] * len(choices)
        owners.append(draw(st.sampled_from(choices)))
    recompute = draw(st.lists(st.booleans(), min_size=num_layers, max_size=num_layers))
    return Assignment(replicas=drawn, owners=tuple(owners), recompute=tuple(recompute)), profile


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Assignment, CostProfile]:
    """One replica whose stages own what they compute: only activations travel."""
    profile = draw(profiles(draw(clusters())))
    num_layers = len(profile.model.layers)
    places = draw(st.permutations(range(len(profile.cluster.devices))))
    replica = draw(replicas(places, num_layers))
    owners = [span.device for span in replica.spans for _ in span.layers]
    return Assignment(
        replicas=(replica,), owners=tuple(owners), recompute=(False,) * num_layers
    ), profile
