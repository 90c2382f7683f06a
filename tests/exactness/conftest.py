"""Stand-ins before anything else, a clean Keras around every test, and the mark `long`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark of the full product, and the warning that is Keras's own."""
    config.addinivalue_line("markers", "long: the full product; run with -m long")
    # Keras 3.15 turns variables into arrays in a way that NumPy 2 deprecates.
    config.addinivalue_line(
        "filterwarnings", "ignore:__array__ implementation doesn't accept:DeprecationWarning"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the full product out unless -m speaks of it."""
    if "long" in (config.getoption("markexpr") or ""):
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture(scope="session", autouse=True)
def stand_ins() -> tuple[str, ...]:
    """Make five logical CPUs before the first operation."""
    from .stand_ins import make_stand_ins

    return make_stand_ins()


@pytest.fixture(autouse=True)
def clean_keras() -> Iterator[None]:
    """Start every test without the policy, the names and the graphs of another."""
    import keras

    keras.config.set_dtype_policy("float32")
    yield
    keras.config.set_dtype_policy("float32")
    keras.utils.clear_session()
