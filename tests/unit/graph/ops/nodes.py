"""Nodes that are in no graph."""

from __future__ import annotations

from evener.graph.nodes import Node


def node_of(op: str) -> Node:
    return Node("node", op, [], {}, dtypes=[])
