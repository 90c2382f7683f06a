"""The strategies, and the two ways to call them."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from .strategies import Wrap, make

EVENER = ("evener-1", "evener-2", "evener-3")
BOTH = (*EVENER, "mirrored-2")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "conformance":
            # MirroredStrategy's own loops over datasets in a graph.
            item.add_marker(pytest.mark.filterwarnings("ignore:To make it possible to preserve"))
            if any(one in item.name for one in ("mirrored", "evener-1", "evener-3")):
                # They show that the checks are MirroredStrategy's own, which changes rarely.
                item.add_marker(pytest.mark.long)


@pytest.fixture(params=BOTH)
def strategy(request: pytest.FixtureRequest) -> tf.distribute.Strategy:
    """A strategy of evener with 1, 2 and 3 replicas, and MirroredStrategy."""
    return make(request.param)


@pytest.fixture(params=("evener-2", "mirrored-2"))
def two(request: pytest.FixtureRequest) -> tf.distribute.Strategy:
    """A strategy with two replicas."""
    return make(request.param)


@pytest.fixture(params=("eager", "function"))
def call(request: pytest.FixtureRequest) -> Wrap:
    """Either a `tf.function` of what it is given, or that itself."""

    def as_it_is(fn: Any) -> Any:
        return fn

    return tf.function if request.param == "function" else as_it_is
