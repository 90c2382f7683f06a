"""The garbage collector rests while modules are imported."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from evener.base.libraries import paused_collector


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.enable()


class Cycle:
    def __init__(self) -> None:
        self.own = self


def test_nothing_is_collected_inside_and_what_is_left_is_searched_no_more() -> None:
    with paused_collector():
        assert not gc.isenabled()
        kept = Cycle()
    assert gc.isenabled()
    assert all(each is not kept for each in gc.get_objects())


def test_a_failed_import_leaves_the_collector_on() -> None:
    with pytest.raises(ImportError), paused_collector():
        raise ImportError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with paused_collector():
        pass
    assert not gc.isenabled()
