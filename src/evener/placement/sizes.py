"""The sizes of the tensors of a placed graph, for the inputs that it was made ready for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.placement.flow import PLUMBING

_ARGUMENTS = ("_Arg", "_DeviceArg")


class Sizes:
    """Knows how many bytes the tensors of one placed graph have.

    TensorFlow's own shape functions tell, from the shapes of the inputs; a tensor whose shape
    depends on values has no size before the step runs.

    Args:
        graph: The placed graph.
        inputs: The tensors it was made ready for.
        drawn: The outputs of nodes that are known, by the names of the nodes.
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
        """Return the bytes of a tensor, or None if they are not known.

        Args:
            tensor: As the input of a node names it: ``"name"`` or ``"name:1"``.
        """
        name, _, index = tensor.partition(":")
        if name in self._arguments:
            return bytes_of(self._arguments[name])
        outputs = self._outputs.get(name, ())
        number = int(index or 0)
        return bytes_of(outputs[number]) if number < len(outputs) else None


def bytes_of(tensor: Any) -> int | None:
    """Return the bytes of a tensor, or None if its shape or dtype does not tell."""
    shape = tensor.shape
    if not tensor.dtype.size or shape.rank is None or not shape.is_fully_defined():
        return None
    return math.prod(shape.as_list()) * tensor.dtype.size


def _inferred(graph: Any, known: Mapping[str, Any]) -> dict[str, list[tf.Tensor]]:
    """Return the outputs of every node of a placed graph, with the shapes that are known."""
    plain = tf.compat.v1.GraphDef()
    plain.versions.CopyFrom(graph.versions)
    plain.library.CopyFrom(graph.library)
    for node in graph.node:
        if node.op not in PLUMBING:
            plain.node.add().CopyFrom(_bare(node))
    inferring = tf.Graph()
    with inferring.as_default():
        given = {name: _placeholder(tensor) for name, tensor in known.items()}
        used = {one for node in plain.node for one in node.input}
        needed = {n: t for n, t in given.items() if n in used or n.removesuffix(":0") in used}
        try:
            tf.graph_util.import_graph_def(plain, name="", input_map=needed)
        except ValueError:
            # Not every placed graph can be read again; then sizes are said to be unknown.
            return {}
    return {op.name: list(op.outputs) for op in inferring.get_operations()}


def _bare(node: Any) -> Any:
    """Return a node without its device, its control inputs and what is private to TensorFlow."""
    bare = type(node)()
    bare.CopyFrom(node)
    bare.device = ""
    for name in [name for name in bare.attr if name.startswith("_")]:
        del bare.attr[name]
    data = [one for one in node.input if not one.startswith("^")]
    del bare.input[:]
    bare.input.extend(data)
    return bare


def _placeholder(tensor: Any) -> tf.Tensor:
    placeholder = tf.compat.v1.placeholder(tensor.dtype, tensor.shape)
    if tensor.dtype == tf.resource:
        _tf_private.copy_handle_data(tensor, placeholder)
    return placeholder
