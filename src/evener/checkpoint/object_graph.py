"""Names of the variables of a checkpoint, so that plain `tf.train.Checkpoint` reads it.

TensorFlow finds a variable by its way from the root object, which the checkpoint describes in an
entry of its own:

    model/_functional/_operations/1/bias/.ATTRIBUTES/VARIABLE_VALUE
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
_ATTRIBUTE = "VARIABLE_VALUE"
# A variable that `tf.train.Checkpoint` has besides what it is given.
COUNTER_KEY = f"save_counter/.ATTRIBUTES/{_ATTRIBUTE}"


def describe(objects: Mapping[str, Any]) -> tuple[bytes, dict[int, str]]:
    """Describe objects as ``tf.train.Checkpoint(**objects)`` does.

    Args:
        objects: Trackable objects by their names in the checkpoint.

    Returns:
        The description, and the key of every variable by the ``id`` of the variable.
    """
    root = tf.train.Checkpoint(**objects)
    view = tf.train.TrackableView(root)
    graph = TrackableObjectGraph()
    graph.nodes.add()
    numbers, keys = {id(root): 0}, dict[int, str]()
    waiting: deque[tuple[Any, str]] = deque([(root, "")])
    while waiting:
        node, path = waiting.popleft()
        number = numbers[id(node)]
        if is_variable(node):
            key = f"{path}/.ATTRIBUTES/{_ATTRIBUTE}"
            graph.nodes[number].attributes.add(
                name=_ATTRIBUTE, full_name=node.name, checkpoint_key=key
            )
            keys[id(node)] = key
            continue
        for name, child in view.children(node).items():
            if id(child) not in numbers:
                numbers[id(child)] = len(graph.nodes)
                graph.nodes.add()
                escaped = name.replace(".", "..").replace("/", ".S")
                waiting.append((child, f"{path}/{escaped}" if path else escaped))
            graph.nodes[number].children.add(node_id=numbers[id(child)], local_name=name)
    _add_counter(graph)
    return graph.SerializeToString(), keys


def _add_counter(graph: TrackableObjectGraph) -> None:
    graph.nodes[0].children.add(node_id=len(graph.nodes), local_name="save_counter")
    graph.nodes.add().attributes.add(
        name=_ATTRIBUTE, full_name="save_counter", checkpoint_key=COUNTER_KEY
    )


def is_variable(value: object) -> bool:
    """Return whether an object is a variable of Keras or of TensorFlow."""
    return isinstance(value, keras.Variable | tf.Variable)
