"""The table of operations names operations that TensorFlow has, and each fact once."""

from __future__ import annotations

import pytest

from evener._tf_private import graphs
from evener.graph.ops.registry import OPERATIONS, Trait, has_trait, operation, shape_rule
from unit.graph.ops.nodes import node_of


def test_every_operation_exists() -> None:
    assert len(OPERATIONS) > 350
    assert [op for op in OPERATIONS if not graphs.is_operation(op)] == []


def test_nothing_is_said_twice() -> None:
    with pytest.raises(AssertionError, match="Reshape has two entries: shape"):
        shape_rule("Reshape")(lambda table, node: None)


def test_of_unknown_operations_nothing_is_known() -> None:
    assert operation("NoSuchOperation").rule is None
    assert not has_trait(node_of("NoSuchOperation"), Trait.VIEW)
    assert has_trait(node_of("Reshape"), Trait.VIEW)
