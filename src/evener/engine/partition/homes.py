"""Homes: the devices of nodes that are computed once.

A node whose result ends in a variable runs on the variable's owner: so gradients are summed there,
and the optimizer runs there. Other nodes run on the device of their largest input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from evener.devices.names import canonical_device
from evener.graph.nodes import Node, Tensor
from evener.ops.decision import Sharding

HOST = "/device:CPU:0"


def find_homes(
    nodes: Sequence[Node],
    sharding: Sharding,
    *,
    owner_of: Callable[[Tensor], str],
    default: str,
    obeys_program: bool = True,
) -> dict[Node, str]:
    """Return the device of every node that is computed once.

    Args:
        nodes: Nodes in an order in which they can run.
        sharding: Nodes that the parts compute; the others are computed once.
        owner_of: Returns the device of a variable, by the argument that is its handle.
        default: Device of nodes without variables.
        obeys_program: Whether nodes run on the devices that the program names. Workers with unlike
            devices do not, because all have to find the same homes.
    """
    homes: dict[Node, str] = {}
    wanted: dict[Tensor, str] = {}
    for node in reversed(nodes):
        if node in sharding.decisions:
            continue
        home = _fixed_home(node, owner_of, obeys_program=obeys_program)
        if not home:
            home = next((wanted[t] for t in node.outputs if t in wanted), "")
        if home:
            homes[node] = home
            size = _elements(node.outputs[0]) if node.outputs else None
            for tensor in node.inputs:
                if size is None or _elements(tensor) == size != 1:
                    wanted.setdefault(tensor, home)
    for node in nodes:
        if node in sharding.decisions or node in homes:
            continue
        candidates = [t for t in node.inputs if t.node in homes or t in wanted]
        if candidates:
            largest = max(candidates, key=lambda t: _elements(t) or 0)
            homes[node] = wanted.get(largest) or homes[largest.node]
        else:
            homes[node] = default
    return homes


def _fixed_home(node: Node, owner_of: Callable[[Tensor], str], *, obeys_program: bool) -> str:
    """Return the device that a node has to be on, or an empty string."""
    for tensor in node.inputs:
        if tensor.dtype == tf.resource:
            return owner_of(tensor)
    if any(tensor.dtype == tf.string for tensor in (*node.inputs, *node.outputs)):
        return HOST
    return canonical_device(node.device) if obeys_program else ""


def _elements(tensor: Tensor) -> int | None:
    shape = tensor.shape
    if shape is None or not all(isinstance(size, int) for size in shape):
        return None
    return math.prod(size for size in shape if isinstance(size, int))
