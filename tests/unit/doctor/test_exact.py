"""The table of exact successors, held to the installed TensorFlow and Keras."""

from __future__ import annotations

import inspect

import keras
import pytest
import tensorflow as tf

from evener.analysis.api import public
from evener.analysis.api.exact import ARGUMENTS, GENERATORS, MEMBERS, NAMES, Renamed
from evener.analysis.api.successors import ARGUMENTS as GONE_ARGUMENTS
from evener.analysis.api.successors import MEMBERS as GONE_MEMBERS

OBJECTS = {
    "strategy": tf.distribute.Strategy,
    "model": keras.Model,
    "metric": keras.Metric,
    "optimizer": keras.optimizers.Optimizer,
}
_INPUT = keras.Input((1,))
CALLED = {
    "model.fit": keras.Model.fit,
    "model.compile": keras.Model.compile,
    "keras.optimizers.*": keras.optimizers.SGD,
    # The class of functional models.
    "keras.Model": type(keras.Model(inputs=_INPUT, outputs=_INPUT)).__init__,
}


def value_of(dotted: str) -> object:
    head, *rest = dotted.split(".")
    value: object = {"tf": tf, "keras": keras}[head]
    for part in rest:
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("old", NAMES)
def test_a_name_is_gone_and_its_successor_is_there(old: str) -> None:
    assert value_of(NAMES[old]) is not None and public.exists(NAMES[old])
    row = public.gone(old)
    is_known = row is not None and row.is_there
    assert is_known or any(not public.exists(way) for way in (old, f"tf.{old}"))


def test_each_member_and_argument_is_one_that_is_gone() -> None:
    members = {(row.kind, row.name) for row in GONE_MEMBERS}
    assert set(MEMBERS) <= members
    assert {("model", name) for name in GENERATORS} <= members
    assert set(ARGUMENTS) <= {(row.called, row.name) for row in GONE_ARGUMENTS}


@pytest.mark.parametrize(("kind", "name"), MEMBERS)
def test_the_successor_of_a_member_is_there(kind: str, name: str) -> None:
    assert not hasattr(OBJECTS[kind], name)
    assert callable(getattr(OBJECTS[kind], MEMBERS[kind, name]))


@pytest.mark.parametrize("name", GENERATORS)
def test_methods_of_generators_take_the_arguments(name: str) -> None:
    new, arguments = GENERATORS[name]
    assert not hasattr(keras.Model, name)
    assert set(arguments) - {"generator"} <= set(
        inspect.signature(getattr(keras.Model, new)).parameters
    )


@pytest.mark.parametrize(
    ("called", "name"), [key for key, row in ARGUMENTS.items() if isinstance(row, Renamed)]
)
def test_a_renamed_argument_stands_where_it_stood(called: str, name: str) -> None:
    row = ARGUMENTS[called, name]
    assert isinstance(row, Renamed)
    names = list(inspect.signature(CALLED[called]).parameters)
    names = [given for given in names if given != "self"]
    assert names[row.position] == row.new and name not in names
