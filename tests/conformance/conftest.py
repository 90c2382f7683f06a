"""The strategies, and the two ways to call them."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import tensorflow as tf

from .strategies import Wrap, make

# Beside two replicas and the reference, a test has one of these.
OTHER_KINDS = ("cut-2", "evener-1", "cut-2", "evener-3")
CALLS = ("eager", "function")
# They show that the checks are TensorFlow's own, which changes rarely, or repeat others.
RARELY = ("mirrored", "one-1", "evener-1", "evener-3")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Two replicas are called both ways, every other strategy in one of them, by turns."""
    names = {"strategy", "call"} & set(metafunc.fixturenames)
    turn = zlib.crc32(metafunc.function.__name__.encode())
    kinds = ("evener-2", OTHER_KINDS[turn // 2 % len(OTHER_KINDS)], "one-1")
    if names == {"strategy", "call"}:
        # Eagerly, a step runs as it is written, whatever the plan is.
        by_turns = {kind: "function" if kind == "cut-2" else CALLS[turn % 2] for kind in kinds}
        by_turns["evener-2"] = "eager"
        ways = [("evener-2", "function"), *by_turns.items()]
        metafunc.parametrize(("strategy", "call"), ways, indirect=True)
    elif names:
        [name] = names
        metafunc.parametrize(name, kinds if name == "strategy" else CALLS, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the reference with one value of each test: it runs no line of evener."""
    repeated, checked = [], set()
    for item in items:
        if item.path.parent.name != "conformance":
            continue
        # MirroredStrategy's own loops over datasets in a graph.
        item.add_marker(pytest.mark.filterwarnings("ignore:To make it possible to preserve"))
        item.add_marker(pytest.mark.covering(2))
        if any(name in item.name for name in RARELY):
            item.add_marker(pytest.mark.long)
        if "one-1" in item.name:
            test = item.path, getattr(item, "originalname", item.name)
            repeated += [item] if test in checked else []
            checked.add(test)
    config.hook.pytest_deselected(items=repeated)
    items[:] = [item for item in items if item not in repeated]


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
