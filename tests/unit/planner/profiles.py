"""Small profiles, drawn and written, for tests of costs and searches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

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

MIB = 2**20


def cluster_of(
    types: Sequence[str],
    memory: Sequence[int | None] | None = None,
    link: Link | None = None,
) -> Cluster:
    """Return one machine with a GPU of each of the types."""
    sizes = [None] * len(types) if memory is None else memory
    return Cluster(
        devices=tuple(
            ClusterDevice(name=f"gpu:{k}", type=name, memory_bytes=size)
            for k, (name, size) in enumerate(zip(types, sizes, strict=True))
        ),
        machines=(Machine(link=link or Link(), host_link=Link(bytes_per_second=1e10)),),
    )


def model_of(
    seconds: Sequence[float],
    *,
    weight_bytes: int = MIB,
    activation_bytes: float = MIB / 64,
    boundary_bytes: float = 1024.0,
    unlike: Sequence[float] = (1.0,),
) -> ModelCosts:
    """Return a model with a layer for each time; the layers need the same memory.

    With `unlike` the first layer keeps so many times the activations, and so on, round and round.
    """
    return ModelCosts(
        name="drawn",
        layers=tuple(
            LayerCosts(
                name=f"layer_{k}",
                weight_bytes=weight_bytes,
                optimizer_bytes=2 * weight_bytes,
                activation_bytes=activation_bytes * unlike[k % len(unlike)],
                boundary_bytes=boundary_bytes,
            )
            for k in range(len(seconds))
        ),
        input_bytes=boundary_bytes,
    )


def times_of(
    seconds: Sequence[float], *, slowness: float, overhead: float
) -> tuple[LayerTimes, ...]:
    """Return times of layers: a part for each sample, and one for each start."""
    return tuple(
        LayerTimes(
            forward=_line(overhead, per_sample * slowness),
            backward=_line(overhead, 2 * per_sample * slowness),
            update_seconds=overhead / 2,
            accumulate_seconds=overhead / 8,
        )
        for per_sample in seconds
    )


def profile_of(
    seconds: Sequence[float],
    slowness: Mapping[str, float],
    cluster: Cluster,
    *,
    overhead: float = 0.0,
    **model: Any,
) -> CostProfile:
    """Return a profile of types of devices, each so many times as slow as the seconds say."""
    return CostProfile(
        model=model_of(seconds, **model),
        cluster=cluster,
        times={
            name: times_of(seconds, slowness=factor, overhead=overhead)
            for name, factor in slowness.items()
        },
    )


def _line(overhead: float, per_sample: float) -> Curve:
    return Curve(((1, overhead + per_sample), (64, overhead + 64 * per_sample)))


@st.composite
def profiles(
    draw: st.DrawFn, *, most_devices: int, most_layers: int, tight: bool = False
) -> CostProfile:
    """Draw a profile; ``tight``: with devices whose memory is near to what is needed."""
    slowness = draw(st.lists(st.sampled_from([1.0, 1.5, 2.5, 6.0]), min_size=1, max_size=3))
    num_devices = draw(st.integers(1, most_devices))
    types = [str(draw(st.integers(0, len(slowness) - 1))) for _ in range(num_devices)]
    seconds = draw(
        st.lists(st.sampled_from([1e-3, 2e-3, 5e-3, 1e-2]), min_size=1, max_size=most_layers)
    )
    model = model_of(
        seconds,
        unlike=draw(st.lists(st.sampled_from([0.25, 1.0, 3.0]), min_size=1, max_size=most_layers)),
        weight_bytes=draw(st.sampled_from([MIB // 8, MIB, 8 * MIB])),
        activation_bytes=draw(st.sampled_from([1024.0, MIB / 8, MIB])),
        boundary_bytes=draw(st.sampled_from([64.0, 4096.0, MIB / 16])),
    )
    link = Link(
        bytes_per_second=draw(st.sampled_from([1e8, 1e9, 1e11])),
        latency_seconds=draw(st.sampled_from([0.0, 1e-4])),
    )
    memory = None
    if tight:
        needed = model.owned_bytes + 2 * model.weight_bytes
        parts = st.sampled_from([0.3, 0.6, 1.0, 2.0, 4.0])
        memory = [round(needed * draw(parts)) for _ in types]
    overhead = draw(st.sampled_from([0.0, 1e-4, 2e-3]))
    slowdowns = {str(k): slowdown for k, slowdown in enumerate(slowness)}
    profile = profile_of(seconds, slowdowns, cluster_of(types, memory, link), overhead=overhead)
    return dataclasses.replace(profile, model=model)
