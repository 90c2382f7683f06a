"""Kernels and definitions of operations."""

from __future__ import annotations

from evener._tf_private.graphs import operation_definition, operation_names, registered_kernels


def test_kernels_and_definitions_are_told() -> None:
    kinds = {kernel.device_type for kernel in registered_kernels("MatMul")}
    assert "CPU" in kinds
    assert registered_kernels("NoSuchOperation") == []
    assert operation_definition("NoSuchOperation") is None
    definition = operation_definition("MatMul")
    assert [argument.name for argument in definition.input_arg] == ["a", "b"]
    assert "MatMul" in operation_names()
