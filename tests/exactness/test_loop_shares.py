"""Shares that change or are measured in custom loops, and owners."""

from __future__ import annotations

from typing import Any

import pytest

from .candidates import OneDevice, Place, make_candidate
from .harness import CHANGES, THREE, Layout, agree, start
from .loops import CROSS_ENTROPY, Parts, batches, classifier, loop_results, run_loop, train_step
from .models import mlp, tabular
from .optimizers import OPTIMIZERS


def test_shares_change_without_retracing() -> None:
    """Shares change before every batch; the function is traced as often as without."""
    dataset = batches(*tabular(80)).repeat(4)
    traces = {}

    def experiment(place: Place) -> dict[str, object]:
        layout = (
            None if isinstance(place, OneDevice) else Layout(num_devices=3, by_batch=CHANGES[3])
        )
        with place.scope():
            parts = classifier()()
        log = run_loop(place, parts, dataset, epochs=1, layout=layout)
        traces[type(place)] = log.num_traces
        return {**parts.state(), **log.results()}

    agree(experiment, Layout(num_devices=3))
    assert max(traces.values()) <= 2, traces


@pytest.mark.long
@pytest.mark.parametrize("shares", ["even", (5, 3, 1)])
def test_partial_batches_are_traced_once(shares: Any) -> None:
    """Whatever the shares: once for whole batches, once for partial ones at most."""
    start()
    place = make_candidate(3, shares)
    with place.scope():
        parts = classifier()()
    log = run_loop(place, parts, batches(*tabular(75)), epochs=3)
    assert log.num_traces <= 2


@pytest.mark.long
def test_measured_shares() -> None:
    """The default: shares follow the times of the devices, and nothing is traced for it."""
    dataset = batches(*tabular(75))
    traces = {}

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            parts = classifier()()
        log = run_loop(place, parts, dataset, epochs=4)
        traces[type(place)] = log.num_traces
        return {**parts.state(), **log.results()}

    agree(experiment, Layout(num_devices=2, shares=None))
    # One device: the first step twice, as it makes variables, and one for the partial batch.
    assert max(traces.values()) <= 3, traces


@pytest.mark.covering(1)
@pytest.mark.long
@pytest.mark.parametrize("owners", ["central", {"*kernel": "cpu:2", "*": "host"}])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_owners(owners: Any, optimizer: str) -> None:
    """Weights on the host, or on a device of their own."""
    from evener.strategy import Strategy

    def make_place(num_devices: int, shares: Any) -> Place:
        return Strategy(
            devices=[f"cpu:{k}" for k in range(num_devices)], shares=shares, owners=owners
        )

    def make() -> Parts:
        model, made = mlp(), OPTIMIZERS[optimizer]()
        step = train_step(model, made, CROSS_ENTROPY)
        return Parts(model=model, optimizers=(made,), step=step)

    dataset = batches(*tabular(75))
    agree(lambda place: loop_results(place, make, dataset), THREE, make_place=make_place)
