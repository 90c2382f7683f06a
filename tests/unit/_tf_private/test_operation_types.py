"""Kernels and definitions of operations."""

from __future__ import annotations

from evener import _tf_private


def test_kernels_and_definitions_are_told() -> None:
    kinds = {
        kernel.device_type for kernel in _tf_private.operation_types.registered_kernels("MatMul")
    }
    assert "CPU" in kinds
    assert _tf_private.operation_types.registered_kernels("NoSuchOperation") == []
    assert _tf_private.operation_types.operation_definition("NoSuchOperation") is None
    definition = _tf_private.operation_types.operation_definition("MatMul")
    assert [one.name for one in definition.input_arg] == ["a", "b"]
    assert "MatMul" in _tf_private.operation_types.operation_names()
