"""Owners where memory is short."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evener.planner.assignment import HOST_OWNER, ReplicaAssignment, Span
from evener.planner.search import owners_that_fit, owning_bytes
from evener.profile import LayerCosts, ModelCosts


def model_of(*sizes: int) -> ModelCosts:
    return ModelCosts(
        name="sized",
        layers=tuple(
            LayerCosts(name=f"layer_{k}", weight_bytes=size, optimizer_bytes=2 * size)
            for k, size in enumerate(sizes)
        ),
    )


def replicas(num_devices: int, num_layers: int) -> list[ReplicaAssignment]:
    return [
        ReplicaAssignment(samples=1, spans=(Span(k, 0, num_layers),)) for k in range(num_devices)
    ]


def test_the_largest_goes_to_the_device_with_most_room() -> None:
    model = model_of(10, 30, 20)
    room = {0: 100.0, 1: 90.0}
    found = owners_that_fit(model, replicas(2, 3), room, allow_host=False)
    # With two holders an owner needs 3 times the weights: 90 on gpu:0, 60 on gpu:1, then 30.
    assert found == (1, 0, 1)


def test_gradients_that_leave_one_by_one_wait_on_their_owner_once() -> None:
    model = model_of(10)
    # Variables of 30 bytes, no fetched weights, and of four devices the gradients of the others.
    assert [owning_bytes(model.layers[0], n, sums_wait=True) for n in (1, 2, 4)] == [20, 30, 50]
    assert [owning_bytes(model.layers[0], n, sums_wait=False) for n in (1, 2, 4)] == [20, 30, 30]
    room = dict.fromkeys(range(4), 30.0)
    holders = replicas(4, 1)
    assert owners_that_fit(model, holders, room, allow_host=False, sums_wait=False) == (0,)
    assert owners_that_fit(model, holders, room, allow_host=False, sums_wait=True) is None


def test_with_one_holder_nothing_is_fetched() -> None:
    # It needs 3 x 10 bytes for the variables, and 10 less as it fetches no weights and no
    # gradient arrives.
    model = model_of(10)
    assert owners_that_fit(model, replicas(1, 1), {0: 20.0}, allow_host=False) == (0,)
    assert owners_that_fit(model, replicas(1, 1), {0: 19.0}, allow_host=False) is None


def test_the_host_takes_what_fits_nowhere() -> None:
    model = model_of(10, 30)
    room = {0: 40.0, 1: 30.0}
    assert owners_that_fit(model, replicas(2, 2), room, allow_host=True) == (0, HOST_OWNER)
    assert owners_that_fit(model, replicas(2, 2), room, allow_host=False) is None


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=6),
    st.lists(st.floats(0, 200), min_size=1, max_size=3),
)
def test_no_device_gets_more_than_its_room(sizes: list[int], room: list[float]) -> None:
    model, left = model_of(*sizes), dict(enumerate(room))
    found = owners_that_fit(model, replicas(len(room), len(sizes)), left, allow_host=True)
    assert found is not None
    used = dict.fromkeys(left, 0.0)
    for owner, layer in zip(found, model.layers, strict=True):
        if owner != HOST_OWNER:
            used[owner] += layer.owned_bytes + layer.weight_bytes * (len(room) - 2)
    assert all(used[device] <= left[device] + 1e-6 for device in left)
