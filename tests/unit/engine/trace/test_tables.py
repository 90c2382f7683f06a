"""The tables of shapes and numbers name operations that TensorFlow has."""

from __future__ import annotations

import pytest

from evener._tf_private import operation_types
from evener.engine.trace.inference import SHAPE_RULES, VALUE_RULES


@pytest.mark.parametrize("table", [SHAPE_RULES, VALUE_RULES], ids=["shapes", "values"])
def test_every_operation_exists(table: dict[str, object]) -> None:
    assert table
    assert [op for op in table if not operation_types.is_operation(op)] == []
