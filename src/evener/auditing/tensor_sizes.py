"""The sizes of the tensors of a placed graph, for the inputs for which it was placed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from evener._tf_private.graphs import copy_handle_data
from evener.auditing.flow import PLUMBING

_ARGUMENTS = ("_Arg", "_DeviceArg")


class TensorSizes:
    """The bytes of the tensors of one placed graph.

    TensorFlow's shape functions infer them from the shapes of the inputs. The size of a tensor
    whose shape depends on values is unknown before the step runs.

    Args:
        graph: The placed graph.
        inputs: The input tensors for which it was placed, of any shape and dtype.
        drawn: Known outputs of nodes, by the names of the nodes.
    """

    def __init__(
        self, graph: Any, inputs: Sequence[Any], drawn: Mapping[str, Sequence[Any]]
    ) -> None:
        self._arguments = {
            node.name: inputs[node.attr["index"].i]
            for node in graph.node
            if node.op in _ARGUMENTS and node.attr["index"].i < len(inputs)
        }
        known = {f"{name}:0": tensor for name, tensor in self._arguments.items()}
        known |= {f"{n}:{i}": t for n, tensors in drawn.items() for i, t in enumerate(tensors)}
        self._outputs: dict[str, Sequence[Any]] = {**_inferred(graph, known), **drawn}

    def num_bytes(self, tensor: str) -> int | None:
        """Return the bytes of a tensor, or None if they are unknown.

        Args:
            tensor: Its name, as in the inputs of a node: ``"name"`` or ``"name:1"``.
        """
        name, _, index = tensor.partition(":")
        if name in self._arguments:
            return num_bytes_of(self._arguments[name])
        outputs = self._outputs.get(name, ())
        number = int(index or 0)
        return num_bytes_of(outputs[number]) if number < len(outputs) else None


def num_bytes_of(tensor: Any) -> int | None:
    """Return the bytes of a tensor, or None if its shape or the size of its dtype is unknown."""
    shape = tensor.shape
    if not tensor.dtype.size or shape.rank is None or not shape.is_fully_defined():
        return None
    return math.prod(shape.as_list()) * tensor.dtype.size


def _inferred(graph: Any, known: Mapping[str, Any]) -> dict[str, list[tf.Tensor]]:
    """Return the outputs of every node of a placed graph, with inferred shapes."""
    plain = tf.compat.v1.GraphDef()
    plain.versions.CopyFrom(graph.versions)
    plain.library.CopyFrom(graph.library)
    for node in graph.node:
        if node.op not in PLUMBING:
            plain.node.add().CopyFrom(_bare(node))
    inferring = tf.Graph()
    with inferring.as_default():
        given = {name: _placeholder(tensor) for name, tensor in known.items()}
        used = {tensor for node in plain.node for tensor in node.input}
        needed = {n: t for n, t in given.items() if n in used or n.removesuffix(":0") in used}
        try:
            tf.graph_util.import_graph_def(plain, name="", input_map=needed)
        except ValueError:
            # Not every placed graph can be imported again; then sizes are unknown.
            return {}
    return {op.name: list(op.outputs) for op in inferring.get_operations()}


def _bare(node: Any) -> Any:
    """Return a node without its device, control inputs and private attributes."""
    bare = type(node)()
    bare.CopyFrom(node)
    bare.device = ""
    for name in [name for name in bare.attr if name.startswith("_")]:
        del bare.attr[name]
    data = [tensor for tensor in node.input if not tensor.startswith("^")]
    del bare.input[:]
    bare.input.extend(data)
    return bare


def _placeholder(tensor: Any) -> tf.Tensor:
    placeholder = tf.compat.v1.placeholder(tensor.dtype, tensor.shape)
    if tensor.dtype == tf.resource:
        copy_handle_data(tensor, placeholder)
    return placeholder
