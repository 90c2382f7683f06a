"""Costs of models, and profiles of them."""

from __future__ import annotations

import pytest

from evener.errors import ProfileError
from evener.profile import (
    Cluster,
    ClusterDevice,
    CostProfile,
    Curve,
    LayerCosts,
    LayerTimes,
    ModelCosts,
)

LAYERS = (
    LayerCosts(name="a", weight_bytes=10, optimizer_bytes=20, state_bytes=3),
    LayerCosts(name="b", weight_bytes=1),
)
TIMES = LayerTimes(forward=Curve(((1, 1.0),)), backward=Curve(((1, 2.0),)))


def cluster_of(*types: str) -> Cluster:
    return Cluster(
        devices=tuple(ClusterDevice(name=f"gpu:{k}", type=name) for k, name in enumerate(types))
    )


def test_owners_keep_weights_optimizer_state_and_other_variables() -> None:
    model = ModelCosts(name="two", layers=LAYERS)
    assert [layer.owned_bytes for layer in LAYERS] == [33, 1]
    assert (model.weight_bytes, model.owned_bytes) == (11, 34)


def test_a_model_has_layers() -> None:
    with pytest.raises(ProfileError, match="PROF-002") as caught:
        ModelCosts(name="empty", layers=())
    assert caught.value.what == "The costs of 'empty' have no layers."


def test_a_model_has_each_layer_once() -> None:
    with pytest.raises(ProfileError, match="PROF-002") as caught:
        ModelCosts(name="two", layers=(*LAYERS, LAYERS[0]))
    assert caught.value.what == "The costs of 'two' name the layer 'a' twice."


def test_a_profile_has_the_times_of_every_type_of_device() -> None:
    with pytest.raises(ProfileError, match="PROF-003") as caught:
        CostProfile(
            model=ModelCosts(name="two", layers=LAYERS),
            cluster=cluster_of("v100", "p100"),
            times={"v100": (TIMES, TIMES)},
        )
    assert "times of 0 layers for devices of type 'p100'" in caught.value.what
    assert "Did you mean 'v100'?" in caught.value.why


def test_a_profile_has_the_times_of_every_layer() -> None:
    with pytest.raises(ProfileError, match="PROF-003") as caught:
        CostProfile(
            model=ModelCosts(name="two", layers=LAYERS),
            cluster=cluster_of("v100"),
            times={"v100": (TIMES,)},
        )
    assert "times of 1 layers" in caught.value.what
    assert "the model has 2" in caught.value.what


def test_times_of_types_that_the_cluster_lacks_are_no_mistake() -> None:
    profile = CostProfile(
        model=ModelCosts(name="two", layers=LAYERS),
        cluster=cluster_of("v100"),
        times={"v100": (TIMES, TIMES), "p100": ()},
    )
    assert profile.times["v100"] == (TIMES, TIMES)
