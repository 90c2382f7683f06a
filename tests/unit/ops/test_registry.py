"""The table of operations names operations that TensorFlow has, and each fact once."""

from __future__ import annotations

import pytest

from evener._tf_private import operation_types
from evener.ops.registry import OPERATIONS, Trait, gathered, has_trait, operation, shape_rule
from unit.ops.nodes import node_of


def test_every_operation_exists() -> None:
    assert len(OPERATIONS) > 350
    assert [op for op in OPERATIONS if not operation_types.is_operation(op)] == []


def test_nothing_is_said_twice() -> None:
    with pytest.raises(AssertionError, match="Reshape has two entries: shape"):
        shape_rule("Reshape")(lambda table, node: None)


def test_what_is_gathered_has_no_rule() -> None:
    for op, known in OPERATIONS.items():
        if known.gathered:
            assert known.rule is None and known.partial_rule is None, op


def test_a_reason_is_given_once() -> None:
    with pytest.raises(AssertionError, match="Where has two entries: gathered"):
        gathered("Where", "Another reason.")


def test_of_unknown_operations_nothing_is_known() -> None:
    assert operation("NoSuchOperation").rule is None
    assert not has_trait(node_of("NoSuchOperation"), Trait.VIEW)
    assert has_trait(node_of("Reshape"), Trait.VIEW)
