"""Hoisted steps: values that may not change, and calls that count as a part of the program."""

from __future__ import annotations

import collections
import gc
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest

from evener.run.hoisted_guards import Guards, NamedValues, Observed


class Own:
    __slots__ = ("__dict__", "apart")
    kind_of_all = "a"

    def __init__(self) -> None:
        self.rate, self.flag, self.parts, self.table = 0.1, True, [1, 2], {"a": 1.0}
        self.array, self.words, self.queue = np.zeros(3), {"x", "y"}, collections.deque([1])
        self.apart, self.pair = 1, (1, [2])


factor = 2.0


def measure(amount: float = 1.0) -> float:
    return amount * factor


def make_closure() -> tuple[Callable[[], float], Callable[[], None]]:
    inner = 1.0

    def read() -> float:
        return inner

    def change() -> None:
        nonlocal inner
        inner = 2.0

    return read, change


class Subject:
    def __init__(self) -> None:
        dense = keras.layers.Dense(3, activation="tanh", name="dense")
        self.model = keras.Sequential([keras.Input((2,)), dense, keras.layers.Dropout(0.5)])
        self.layer: Any = dense
        self.own: Any = Own()
        self.read, self.change = make_closure()
        self.space: Any = types.SimpleNamespace(rate=1.0, zero=0.0)
        self.table = {"rate": 0.1, "more": [1.0]}

    def guards(self) -> Guards:
        held = (self.model, self.own, self.read, self.space, self.table, measure)
        names = [*vars(self.own), "apart", "kind_of_all", "zero"]
        return Guards([(f"held[{i}]", value) for i, value in enumerate(held)], names)


def _equal_flag(s: Subject) -> None:
    # Equal, and a flag no more: 1 is True, and means another number.
    s.own.flag = 1


CHANGES: dict[str, Callable[[Subject], object]] = {
    "a number": lambda s: setattr(s.own, "rate", 0.2),
    "the sign of zero": lambda s: setattr(s.space, "zero", -0.0),
    "a flag": lambda s: setattr(s.own, "flag", False),
    "a flag that is equal": _equal_flag,
    "an attribute that goes": lambda s: delattr(s.own, "rate"),
    "an attribute that comes": lambda s: setattr(s.own, "kind_of_all", "b"),
    "an attribute of the class": lambda s: setattr(Own, "kind_of_all", "b"),
    "an attribute in a slot": lambda s: setattr(s.own, "apart", 2),
    "a list is appended to": lambda s: s.own.parts.append(3),
    "a list with one item replaced": lambda s: s.own.parts.__setitem__(0, 5),
    "a list that is equal": lambda s: setattr(s.own, "parts", [1, 2]),
    "a list in a tuple": lambda s: s.own.pair[1].append(1),
    "a deque": lambda s: s.own.queue.append(2),
    "a set": lambda s: s.own.words.add("z"),
    "an element of a set": lambda s: (s.own.words.remove("x"), s.own.words.add("z")),
    "an array": lambda s: s.own.array.__setitem__(0, 1.0),
    "a dictionary entry": lambda s: s.table.update(rate=0.3),
    "a dictionary entry that comes": lambda s: s.table.update(new=0.3),
    "a key": lambda s: s.own.table.update(b=s.own.table.pop("a")),
    "a list in a dictionary": lambda s: s.table["more"].append(2.0),
    "a closure": lambda s: s.change(),
    "a default": lambda s: setattr(measure, "__defaults__", (2.0,)),
    "a namespace": lambda s: setattr(s.space, "rate", 2.0),
    "trainable": lambda s: setattr(s.layer, "trainable", False),
    "trainable of a model": lambda s: setattr(s.model, "trainable", False),
    "trainable of a variable": lambda s: setattr(s.layer.kernel, "trainable", False),
    "an activation": lambda s: setattr(s.layer, "activation", keras.activations.relu),
    "a rate of a layer": lambda s: setattr(s.model.layers[1], "rate", 0.1),
    "an attribute of a layer that comes": lambda s: setattr(s.layer, "new", 2),
    "a layer that comes": lambda s: s.model.add(keras.layers.Dense(1, name="last")),
    "a regularizer": lambda s: setattr(s.layer, "kernel_regularizer", keras.regularizers.L2(1.0)),
}


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Own, "kind_of_all", "a")
    monkeypatch.setattr(measure, "__defaults__", measure.__defaults__)


@pytest.mark.parametrize("num_calls", [0, 2])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed(name: str, num_calls: int) -> None:
    subject = Subject()
    guards = subject.guards()
    for _ in range(num_calls):
        assert guards.changed() is None
    CHANGES[name](subject)
    assert guards.changed() is not None


def test_equal_numbers_that_are_made_anew_are_no_change() -> None:
    subject = Subject()
    guards = subject.guards()
    for _ in range(3):
        subject.own.rate = float("0.1")
        subject.own.words = subject.own.words
        assert guards.changed() is None
    subject.own.rate = 0.2
    assert guards.changed() == "held[1].rate"
    guards.restore()
    assert subject.own.rate == 0.1


def test_a_number_that_was_renewed_is_still_compared() -> None:
    subject = Subject()
    guards = subject.guards()
    subject.table["rate"] = float("0.1")
    assert guards.changed() is None
    subject.own.parts.append(3)
    assert guards.changed() == "held[1].parts"
    subject.own.parts.pop()
    subject.table["rate"] = -0.1
    assert guards.changed() is not None


def test_what_is_kept_beside_a_computation_may_come_and_go() -> None:
    subject = Subject()
    guards = subject.guards()
    for _ in range(30):
        vars(subject.layer)["_losses_override"] = []
        assert guards.changed() is None
        del vars(subject.layer)["_losses_override"]
        assert guards.changed() is None
    subject.layer.trainable = False
    assert guards.changed() is not None


@pytest.mark.parametrize("value", [0.2, None, 1])
def test_globals_are_compared_by_name(value: object) -> None:
    held: dict[str, Any] = {"rate": 1.0, "other": 2.0}
    check = NamedValues("", held, ["rate", "absent"])
    held["other"] = 3.0
    assert check.holds()
    held["rate"] = value
    assert not check.holds()
    assert check.path == "rate"
    check.restore()
    held["absent"] = 1.0
    assert not check.holds()
    check.restore()
    assert held == {"rate": 1.0, "other": 3.0}


_SEEN: list[float] = []


def clock(phase: str, info: dict[str, int]) -> None:
    _SEEN.append(time.perf_counter())


class Cycle:
    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        _SEEN.append(time.perf_counter())


@pytest.fixture
def eager_collector() -> Iterator[None]:
    """Let the collector run at almost every allocation, and call a function each time."""
    before = gc.get_threshold()
    gc.callbacks.append(clock)
    gc.set_threshold(1)
    _SEEN.clear()
    try:
        yield
    finally:
        gc.enable()
        gc.set_threshold(*before)
        gc.callbacks.remove(clock)


def test_the_collector_runs_nothing_while_a_step_is_observed(eager_collector: None) -> None:
    Cycle()
    with Observed() as observed:
        made = [Cycle() for _ in range(100)]
        del made
    assert observed.problem is None
    assert gc.isenabled()
    assert len([Cycle() for _ in range(100)]) == 100
    assert _SEEN


def test_a_collector_that_is_off_stays_off(eager_collector: None) -> None:
    gc.disable()
    with Observed():
        pass
    assert not gc.isenabled()


def test_the_clock_of_a_step_is_seen() -> None:
    with Observed() as observed:
        time.perf_counter()
    assert observed.problem is not None
    assert observed.problem[2] == "it calls time.perf_counter()"
