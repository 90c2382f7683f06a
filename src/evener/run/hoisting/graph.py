"""Check of the graph of a hoisted step: it may only compute, and read and write variables."""

from __future__ import annotations

from typing import Any

from evener._tf_private.operation_types import operation_definition
from evener.run.hoisting.values import CannotHoist

_VARIABLES = ("ReadVariableOp", "VariableShape", "VarIsInitializedOp", "ResourceGather", "Assign")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall", "If", "While", "Case")
_HARMLESS = (
    "Assert",
    "LookupTableFindV2",
    "LookupTableSizeV2",
    "NoOp",
    "CheckNumerics",
    "RngReadAndSkip",
)
# Public operations of TensorFlow, called by the op registry stateful though they only compute.
_COMPUTING = ("CudnnRNN", "TensorList", "TensorArray", "EmptyTensorList", "Unbatch", "Stack")


def check_operations(graph: Any) -> None:
    """Check the operations of a graph and of the functions in it.

    Args:
        graph: The graph of a step, just traced.

    Raises:
        CannotHoist: If an operation draws random numbers from a state that is no variable, reads or
            writes outside, or calls Python.
    """
    for operation in graph.get_operations():
        _check(operation.type, operation.op_def.is_stateful)
    for function in graph.as_graph_def().library.function:
        for node in function.node_def:
            definition = operation_definition(node.op)
            _check(node.op, definition is not None and definition.is_stateful)


def _check(kind: str, is_stateful: bool) -> None:
    if not is_stateful or kind in (*_CALLS, *_HARMLESS):
        return
    if kind.startswith((*_VARIABLES, *_COMPUTING)):
        return
    if (kind.startswith("Resource") and "Apply" in kind) or kind.startswith("ResourceScatter"):
        return
    if kind in ("VarHandleOp",):
        raise CannotHoist("it makes variables")
    if "Random" in kind or kind in ("Multinomial", "ParameterizedTruncatedNormal"):
        raise CannotHoist(f"tf.random draws other numbers by {kind} in a function than eagerly")
    raise CannotHoist(f"the operation {kind} does more than compute")
