"""The strategies, and the two ways to call them."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import tensorflow as tf

from .strategies import Wrap, make

KINDS = ("evener-1", "evener-2", "evener-3", "cut-2", "one-1")
CALLS = ("eager", "function")
# They show that the checks are TensorFlow's own, which changes rarely, or repeat others.
RARELY = ("mirrored", "one-1", "evener-1", "evener-3")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Two replicas are called both ways, every other strategy in one of them, by turns."""
    names = {"strategy", "call"} & set(metafunc.fixturenames)
    if names == {"strategy", "call"}:
        first, second = (
            CALLS if zlib.crc32(metafunc.function.__name__.encode()) % 2 else CALLS[::-1]
        )
        ways = (
            *(("evener-2", call) for call in CALLS),
            *(("evener-1", first), ("evener-3", second), ("one-1", first)),
            # Eagerly, a step runs as it is written, whatever the plan is.
            ("cut-2", "function"),
        )
        metafunc.parametrize(("strategy", "call"), ways, indirect=True)
    elif names:
        [name] = names
        metafunc.parametrize(name, KINDS if name == "strategy" else CALLS, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "conformance":
            # MirroredStrategy's own loops over datasets in a graph.
            item.add_marker(pytest.mark.filterwarnings("ignore:To make it possible to preserve"))
            item.add_marker(pytest.mark.covering(2))
            if any(name in item.name for name in RARELY):
                item.add_marker(pytest.mark.long)


@pytest.fixture
def strategy(request: pytest.FixtureRequest) -> tf.distribute.Strategy:
    """Strategies of evener for several devices and micro-batches, and TensorFlow's for one."""
    return make(request.param)


@pytest.fixture
def call(request: pytest.FixtureRequest) -> Wrap:
    """Either a `tf.function` of what it is given, or that itself."""

    def as_it_is(fn: Any) -> Any:
        return fn

    return tf.function if request.param == "function" else as_it_is
