"""The ways of transfers: which connections, which devices in between, and in which order."""

from __future__ import annotations

import pytest

from evener.planner.assignment import EACH_MACHINE, HOST_OWNER, Assignment, ReplicaAssignment, Span
from evener.profile import (
    Cluster,
    ClusterDevice,
    CostProfile,
    Curve,
    LayerCosts,
    LayerTimes,
    Machine,
    ModelCosts,
)
from simulation.activities import Server, Use
from simulation.cases import link
from simulation.routes import route
from simulation.simulation import Simulation, simulate


def cluster_of(*counts: int, shares_link: bool = False) -> Cluster:
    """Machines of so many devices; 10, 5 and 2 bytes per second by link, host link and network."""
    return Cluster(
        devices=tuple(
            ClusterDevice(name=f"worker:{machine}/gpu:{number}", type="one", machine=machine)
            for machine, count in enumerate(counts)
            for number in range(count)
        ),
        machines=(Machine(link=link(10.0, 0.1), host_link=link(5.0, 0.2), shares_link=shares_link),)
        * len(counts),
        network=link(2.0, 0.3),
    )


def uses(*listed: tuple[str, int, float]) -> tuple[Use, ...]:
    return tuple(Use(Server(kind, place), seconds) for kind, place, seconds in listed)


ROUTES = {
    "within a machine": ((1, 0), False, 0.1, uses(("out", 1, 2.0), ("in", 0, 2.0))),
    "over its bus": ((1, 0), True, 0.1, uses(("out", 1, 2.0), ("bus", 0, 2.0), ("in", 0, 2.0))),
    "from the host": ((HOST_OWNER, 1), False, 0.2, uses(("host out", 1, 4.0))),
    "to the host": ((1, HOST_OWNER), False, 0.2, uses(("host in", 1, 4.0))),
    "from the host on a shared link": ((HOST_OWNER, 1), True, 0.2, uses(("host out", 0, 4.0))),
    "to another machine": (
        (0, 3),
        False,
        0.3,
        uses(("network out", 0, 10.0), ("network in", 1, 10.0), ("in", 3, 2.0)),
    ),
    "to another machine with a bus": (
        (0, 3),
        True,
        0.3,
        uses(("network out", 0, 10.0), ("network in", 1, 10.0), ("in", 3, 2.0), ("bus", 1, 2.0)),
    ),
    "from the host to another machine": (
        (HOST_OWNER, 2),
        False,
        0.3,
        uses(("network out", 0, 10.0), ("network in", 1, 10.0), ("in", 2, 2.0)),
    ),
    "to the host of another machine": (
        (2, HOST_OWNER),
        False,
        0.3,
        uses(("network out", 1, 10.0), ("network in", 0, 10.0)),
    ),
}


@pytest.mark.parametrize("name", ROUTES)
def test_a_transfer_uses_the_connections_on_its_way(name: str) -> None:
    (source, target), shares_link, latency, wanted = ROUTES[name]
    found = route(cluster_of(2, 2, shares_link=shares_link), source, target, 20.0)
    assert (found.uses, found.latency_seconds) == (wanted, latency)


def step_on(cluster: Cluster, owners: tuple[int, ...]) -> Simulation:
    """A replica on every device, one layer for each owner; nothing is computed."""
    times = LayerTimes(forward=Curve(((1, 0.0),)), backward=Curve(((1, 0.0),)))
    layers = tuple(
        LayerCosts(name=f"layer_{k}", weight_bytes=20, optimizer_bytes=1)
        for k in range(len(owners))
    )
    profile = CostProfile(
        model=ModelCosts(name="idle", layers=layers),
        cluster=cluster,
        times={"one": (times,) * len(owners)},
    )
    replicas = tuple(
        ReplicaAssignment(samples=1, spans=(Span(place, 0, len(owners)),))
        for place in range(len(cluster.devices))
    )
    return simulate(
        Assignment(replicas=replicas, owners=owners, recompute=(False,) * len(owners)), profile
    )


def ways(step: Simulation, what: str) -> list[tuple[int, int]]:
    return [
        (transfer.source, transfer.target) for transfer in step.transfers if transfer.what == what
    ]


def test_what_one_device_owns_goes_to_every_other_one_in_any_machine() -> None:
    step = step_on(cluster_of(1, 2), owners=(0, 2))
    assert ways(step, "weights of layer_0") == [(0, 1), (0, 2)]
    assert ways(step, "weights of layer_1") == [(2, 0), (2, 1)]
    assert sorted(ways(step, "gradients of layer_0")) == [(1, 0), (2, 0)]


def test_weights_of_each_machine_go_round_its_devices() -> None:
    step = step_on(cluster_of(1, 3), owners=(EACH_MACHINE,))
    weights = [transfer for transfer in step.transfers if transfer.what == "weights of layer_0"]
    assert [(transfer.source, transfer.target) for transfer in weights] == [(1, 2), (2, 3), (3, 1)]
    # All at once, and each two of three parts of 20 bytes.
    assert {transfer.num_bytes for transfer in weights} == {20 * 2 / 3}
    assert {transfer.end_seconds for transfer in weights} == {20 * 2 / 3 / 10 + 0.1}


def test_gradients_are_added_up_in_their_machine_before_they_leave_it() -> None:
    step = step_on(cluster_of(1, 3), owners=(EACH_MACHINE,) * 2)
    for layer, entry in (("layer_0", 1), ("layer_1", 2)):
        gradients = [
            transfer for transfer in step.transfers if transfer.what == f"gradients of {layer}"
        ]
        inside, between = gradients[:3], gradients[3:]
        assert sorted((transfer.source, transfer.target) for transfer in inside) == [
            (1, 2),
            (2, 3),
            (3, 1),
        ]
        assert sorted((transfer.source, transfer.target) for transfer in between) == [
            (0, entry),
            (entry, 0),
        ]
        # Of two machines each sends one half of the sum and then one half of the result.
        assert {transfer.num_bytes for transfer in between} == {20.0}
        assert min(transfer.begin_seconds for transfer in between) >= max(
            transfer.end_seconds for transfer in inside
        )
        assert {transfer.end_seconds - transfer.begin_seconds for transfer in between} == {
            20 / 2 + 0.3
        }


def test_owners_send_to_the_device_after_them_first() -> None:
    step = step_on(cluster_of(4), owners=(0, 1, 2, 3))
    for owner in range(4):
        targets = [target for _, target in ways(step, f"weights of layer_{owner}")]
        assert targets == [(owner + k) % 4 for k in (1, 2, 3)]
    # So all connections are busy all the time: three transfers of 2 s, one after the other.
    weights = [transfer for transfer in step.transfers if transfer.what.startswith("weights")]
    assert max(transfer.end_seconds for transfer in weights) == pytest.approx(3 * 2.0 + 0.1)


def test_devices_on_one_bus_share_the_way_to_the_host() -> None:
    for shares_link, seconds in ((False, 4.0), (True, 8.0)):
        step = step_on(cluster_of(2, shares_link=shares_link), owners=(HOST_OWNER,))
        weights = [transfer for transfer in step.transfers if transfer.what.startswith("weights")]
        assert max(transfer.end_seconds for transfer in weights) == pytest.approx(seconds + 0.2)
