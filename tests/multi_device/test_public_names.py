"""Every public layer, loss, metric and operation in parts: numbers of one device, nothing gathered.

The tables of calls are in `public_names`; `docs/sharded_operations.md` is written from them.
"""

from __future__ import annotations

import functools
from typing import Any

import keras
import pytest
import tensorflow as tf

from multi_device.public_names.document import GATHERED, PATH, group_of, listed
from multi_device.public_names.namespaces import NAMESPACES, aliases, missing, recipes
from multi_device.public_names.reasons import NOT_YET, REASONS
from multi_device.public_names.recipe import call
from multi_device.public_names.verdicts import Call, difference, verdict
from unit.graph.ops.op_case import B, f32

RECIPES = recipes()
# Keras's operations call functions of TensorFlow whose numbers are compared: one in three is too.
KERAS_OPS = [name for name in RECIPES if name.startswith("keras.ops.")]
ONLY_PARTITIONED = {name for place, name in enumerate(KERAS_OPS) if place % 3}
X = f32(B, 4)


@functools.cache
def document() -> dict[str, str]:
    return listed(PATH.read_text())


def test_every_public_name_is_called_or_has_a_reason() -> None:
    assert missing() == []
    assert len(RECIPES) > 850


def test_the_tables_name_what_is_there() -> None:
    for space in NAMESPACES:
        for name in space.table:
            assert hasattr(space.module, name), f"{space.path}.{name}"
        assert not space.table.keys() & space.not_called.keys(), space.path


def test_the_document_lists_every_call() -> None:
    assert document().keys() == RECIPES.keys()


def test_what_is_gathered_has_a_reason() -> None:
    gathered = {name for name, group in document().items() if group == GATHERED}
    assert gathered == REASONS.keys()


def test_few_works_sample_by_sample_and_is_gathered() -> None:
    assert sum(len(names.split()) for names in NOT_YET.values()) <= 9


@pytest.mark.sampled(120)
@pytest.mark.parametrize("name", RECIPES)
def test_in_parts(name: str) -> None:
    made = Call(name, RECIPES[name])
    if made.recipe.compared and name not in ONLY_PARTITIONED:
        largest, found = difference(made)
        assert largest <= made.recipe.tolerance
    else:
        found = verdict(made)
    assert group_of(found) == document()[name], found


def test_a_gathered_operation_is_seen() -> None:
    found = verdict(Call("own", call(lambda x: tf.reverse(x, [0]) * 2.0, X)))
    assert found.gathered == ("ReverseV2",)
    assert group_of(found) == GATHERED


def test_rows_that_parts_ask_of_others_are_seen() -> None:
    found = verdict(Call("own", call(lambda x: tf.matmul(x, x, transpose_b=True), X)))
    assert "MatMul" in found.gathered


def test_unlike_numbers_are_seen() -> None:
    calls: list[Any] = []

    def unlike(x: tf.Tensor) -> tf.Tensor:
        calls.append(x)
        return x * float(len(calls))

    assert difference(Call("own", call(unlike, X)))[0] > 1e-2


def test_aliases_are_called_once() -> None:
    assert aliases()["tf.nn.tanh"] == "tf.math.tanh"
    assert keras.layers.MaxPool2D is keras.layers.MaxPooling2D
    assert "keras.layers.MaxPool2D" not in RECIPES
