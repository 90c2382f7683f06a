"""Types of operations: their definitions and their kernels."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import (
    kernels,
    op_def_registry,
)


@functools.cache
def op_definition(op_type: str) -> Any:
    """Return the definition of a type of operation.

    Why: it says which outputs an operation has and whether it is stateful. There is no public
    registry. If it changes: no step can be partitioned.
    """
    definition = operation_definition(op_type)
    if definition is None:
        raise KeyError(op_type)
    return definition


@functools.cache
def is_operation(op_type: str) -> bool:
    """Return whether a type of operation is TensorFlow's, and not the name of a function.

    Why: old parts of TensorFlow call a function by an operation that is named as it is.
    If it changes: `tf.nn.ctc_loss` cannot be partitioned.
    """
    try:
        return operation_definition(op_type) is not None
    except RuntimeError:
        return False


@functools.cache
def is_stateful(op_type: str) -> bool:
    """Return whether TensorFlow calls a type of operation stateful. See `op_definition`."""
    return bool(op_definition(op_type).is_stateful)


def output_dtypes(node: Any) -> list[tf.DType]:
    """Return the dtypes of the outputs of a node definition. See `op_definition`."""
    dtypes: list[int] = []
    for arg in op_definition(node.op).output_arg:
        if arg.type_list_attr:
            dtypes.extend(node.attr[arg.type_list_attr].list.type)
            continue
        dtype = node.attr[arg.type_attr].type if arg.type_attr else arg.type
        count = node.attr[arg.number_attr].i if arg.number_attr else 1
        dtypes.extend([dtype] * count)
    return [_dtype(number) for number in dtypes]


def input_names(op_type: str) -> tuple[str, ...]:
    """Return what the definition of a type of operation calls its inputs. See `op_definition`."""
    return tuple(arg.name for arg in op_definition(op_type).input_arg)


def input_counts(op_type: str, attrs: Any) -> list[int]:
    """Return how many tensors a node has for each input of its definition. See `op_definition`."""
    counts: list[int] = []
    for arg in op_definition(op_type).input_arg:
        if arg.type_list_attr:
            counts.append(len(attrs[arg.type_list_attr].list.type))
        else:
            counts.append(attrs[arg.number_attr].i if arg.number_attr else 1)
    return counts


def output_names(op_type: str, attrs: Any) -> list[str]:
    """Return what a function definition calls the outputs of a node: ``"y:0"``, ``"output:1"``.

    Why: inside function definitions, outputs are named by the operation's definition.
    If it changes: functions of parts are refused when they are registered.
    """
    names: list[str] = []
    for arg in op_definition(op_type).output_arg:
        count = 1
        if arg.type_list_attr:
            count = len(attrs[arg.type_list_attr].list.type)
        elif arg.number_attr:
            count = attrs[arg.number_attr].i
        names.extend(f"{arg.name}:{k}" for k in range(count))
    return names


@functools.cache
def _dtype(number: int) -> tf.DType:
    return tf.as_dtype(number)


def operation_definition(op_type: str) -> Any | None:
    """Return the definition of a type of operation, or None if there is none.

    Why: a kernel names the arguments that it takes in host memory; the definition says which
    there are. If it changes: nothing is said to work in host memory.
    """
    return op_def_registry.get(op_type)


def registered_kernels(op_type: str) -> list[Any]:
    """Return the kernel definitions of one type of operation, for all kinds of devices.

    Why: they say which dtypes have a GPU kernel, and what works in host memory.
    If it changes: reasons for fallbacks come from the table alone.
    """
    return list(kernels.get_registered_kernels_for_op(op_type).kernel)


def all_registered_kernels() -> list[Any]:
    """Return the definitions of all kernels. See `registered_kernels`."""
    return list(kernels.get_all_registered_kernels().kernel)


def operation_names() -> list[str]:
    """Return the names of all types of operations. See `operation_definition`."""
    return sorted({kernel.op for kernel in all_registered_kernels()})
