"""Profiles: curves of seconds by samples, links and clusters, costs of models."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evener.errors import ProfileError
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

CURVE = Curve(((2, 1.0), (4, 3.0), (8, 4.0)))


@pytest.mark.parametrize(
    ("samples", "seconds"),
    [
        (0, 0.0),
        (-1, 0.0),
        (0.5, 1.0),
        (2, 1.0),
        (3, 2.0),
        (4, 3.0),
        (6, 3.5),
        (8, 4.0),
        # On with the slope of the last part, 1/4.
        (16, 6.0),
    ],
)
def test_a_curve_is_linear_between_points(samples: float, seconds: float) -> None:
    assert CURVE(samples) == seconds


def test_one_point_is_taken_for_a_line_through_zero_beyond_it() -> None:
    curve = Curve(((4, 1.0),))
    assert [curve(samples) for samples in (1, 4, 8)] == [1.0, 1.0, 2.0]


def test_a_measurement_that_falls_is_raised() -> None:
    assert Curve(((1, 2.0), (2, 1.0), (3, 4.0))).points == ((1, 2.0), (2, 2.0), (3, 4.0))


def test_scaling_and_adding_curves() -> None:
    assert CURVE.scaled(0.5).points == ((2, 0.5), (4, 1.5), (8, 2.0))
    assert Curve.total([CURVE, Curve(((3, 1.0), (5, 2.0)))]).points == (
        (2, 2.0),
        (3, 3.0),
        (4, 4.5),
        (5, 5.25),
        # The second goes on with half a second for each sample.
        (8, 4.0 + 3.5),
    )


@pytest.mark.parametrize(
    "points",
    [
        (),
        ((0, 1.0),),
        ((-1, 1.0),),
        ((2, 1.0), (1, 2.0)),
        ((1, 1.0), (1, 2.0)),
        ((1, -1.0),),
        ((1, math.nan),),
        ((math.inf, 1.0),),
        ((1, math.inf),),
    ],
)
def test_points_that_make_no_curve(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ProfileError, match="PROF-001") as caught:
        Curve(points)
    assert str(list(points)) in caught.value.what


seconds = st.floats(0, 100)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    samples = sorted(draw(st.sets(st.integers(1, 50), min_size=1, max_size=5)))
    return Curve(tuple((count, draw(seconds)) for count in samples))


@given(curves(), st.floats(0, 200), st.floats(0, 200))
def test_a_curve_never_falls(curve: Curve, samples: float, other: float) -> None:
    low, high = sorted((samples, other))
    assert curve(low) <= curve(high) + 1e-9


@given(st.lists(curves(), min_size=1, max_size=4), st.integers(1, 200))
def test_a_total_is_the_sum_between_and_at_all_points(found: list[Curve], samples: int) -> None:
    most = min(curve.points[-1][0] for curve in found)
    least = max(curve.points[0][0] for curve in found)
    if least <= samples <= most:
        assert Curve.total(found)(samples) == pytest.approx(sum(curve(samples) for curve in found))


def device(name: str, machine: int = 0) -> ClusterDevice:
    return ClusterDevice(name=name, type="one", machine=machine)


def test_a_transfer_takes_latency_and_bytes_by_bandwidth() -> None:
    link = Link(bytes_per_second=10.0, latency_seconds=0.5)
    assert link.seconds(20.0) == 2.5
    assert link.seconds(0.0) == 0.0
    assert Link().seconds(1e12) == 0.0


@pytest.mark.parametrize(
    ("bandwidth", "latency"),
    [(0.0, 0.0), (-1.0, 0.0), (math.nan, 0.0), (1.0, -1.0), (1.0, math.inf), (1.0, math.nan)],
)
def test_links_that_cannot_be(bandwidth: float, latency: float) -> None:
    with pytest.raises(ProfileError, match="PROF-004"):
        Link(bytes_per_second=bandwidth, latency_seconds=latency)


def test_devices_of_one_machine_use_its_link_and_others_the_network() -> None:
    links = [Link(bytes_per_second=float(k)) for k in (1, 2, 3)]
    cluster = Cluster(
        devices=(device("a"), device("b"), device("c", 1), device("d", 1)),
        machines=(Machine(link=links[0]), Machine(link=links[1])),
        network=links[2],
    )
    assert cluster.link(0, 1) == links[0]
    assert cluster.link(3, 2) == links[1]
    assert cluster.link(1, 2) == cluster.link(2, 1) == links[2]


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ((), "It has no devices."),
        ((device("gpu:0"), device("gpu:0")), "The device 'gpu:0' is there twice."),
        ((device("gpu:0", 1),), "gpu:0 is in machine 1, which is not there."),
        ((device("gpu:0", -1),), "gpu:0 is in machine -1, which is not there."),
    ],
)
def test_clusters_that_contradict_themselves(devices: tuple[ClusterDevice, ...], why: str) -> None:
    with pytest.raises(ProfileError, match="PROF-005") as caught:
        Cluster(devices=devices, name="office")
    assert "'office'" in caught.value.what
    assert caught.value.why == why


LAYERS = (
    LayerCosts(name="a", weight_bytes=10, optimizer_bytes=20, state_bytes=3),
    LayerCosts(name="b", weight_bytes=1),
)

TIMES = LayerTimes(forward=Curve(((1, 1.0),)), backward=Curve(((1, 2.0),)))


def test_owners_keep_weights_optimizer_state_and_other_variables() -> None:
    model = ModelCosts(name="two", layers=LAYERS)
    assert [layer.owned_bytes for layer in LAYERS] == [33, 1]
    assert (model.weight_bytes, model.owned_bytes) == (11, 34)


@pytest.mark.parametrize(
    ("layers", "what"),
    [((), "have no layers."), ((*LAYERS, LAYERS[0]), "name the layer 'a' twice.")],
)
def test_a_model_has_layers_each_once(layers: tuple[LayerCosts, ...], what: str) -> None:
    with pytest.raises(ProfileError, match="PROF-002") as caught:
        ModelCosts(name="two", layers=layers)
    assert caught.value.what == f"The costs of 'two' {what}"


@pytest.mark.parametrize(
    ("times", "what", "why"),
    [
        ({"v100": (TIMES, TIMES)}, "times of 0 layers for devices of type 'p100'", "mean 'v100'?"),
        ({"v100": (TIMES,), "p100": (TIMES,)}, "times of 1 layers", ""),
    ],
)
def test_a_profile_has_times_of_every_type_and_layer(
    times: dict[str, tuple[LayerTimes, ...]], what: str, why: str
) -> None:
    model = ModelCosts(name="two", layers=LAYERS)
    types = ("v100", "p100")
    cluster = Cluster(devices=tuple(ClusterDevice(name=f"{k}:0", type=k) for k in types))
    with pytest.raises(ProfileError, match="PROF-003") as caught:
        CostProfile(model=model, cluster=cluster, times=times)
    assert what in caught.value.what and "the model has 2" in caught.value.what
    assert why in caught.value.why
    # Times of types that the cluster lacks are no mistake.
    whole = {name: (TIMES, TIMES) for name in types}
    CostProfile(model=model, cluster=cluster, times={**whole, "a100": ()})
