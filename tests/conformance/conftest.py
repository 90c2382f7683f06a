"""The strategies, and the two ways to call them."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from .strategies import Wrap, make

KINDS = ("evener-1", "evener-2", "evener-3", "cut-2", "one-1")
# They show that the checks are TensorFlow's own, which changes rarely, or repeat others.
RARELY = ("mirrored", "one-1", "evener-1", "evener-3")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "conformance":
            # MirroredStrategy's own loops over datasets in a graph.
            item.add_marker(pytest.mark.filterwarnings("ignore:To make it possible to preserve"))
            # Eagerly, a step runs as it is written, whatever the plan is.
            repeats = "cut-2" in item.name and "eager" in item.name
            if repeats or any(name in item.name for name in RARELY):
                item.add_marker(pytest.mark.long)


@pytest.fixture(params=KINDS)
def strategy(request: pytest.FixtureRequest) -> tf.distribute.Strategy:
    """Strategies of evener for several devices and micro-batches, and TensorFlow's for one."""
    return make(request.param)


@pytest.fixture(params=("eager", "function"))
def call(request: pytest.FixtureRequest) -> Wrap:
    """Either a `tf.function` of what it is given, or that itself."""

    def as_it_is(fn: Any) -> Any:
        return fn

    return tf.function if request.param == "function" else as_it_is
