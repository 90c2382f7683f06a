"""Operations with the device that they ran on, by TensorFlow's own record of a call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

_GRAPH = "graph_run_metadata"


def operations(call: Callable[[], object], folder: Path) -> list[tuple[str, str]]:
    """Return the operations of every graph that a call ran, each with the device it ran on."""
    writer = tf.summary.create_file_writer(str(folder))
    with writer.as_default():
        tf.summary.trace_on(graph=True)
        call()
        tf.summary.trace_export("call", step=0)
    writer.close()
    metadata = tf.compat.v1.RunMetadata()
    for path in folder.glob("events*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name.startswith(_GRAPH):
                    metadata.MergeFrom(
                        tf.compat.v1.RunMetadata.FromString(value.tensor.string_val[0])
                    )
    return [
        (node.op, node.device)
        for graph in metadata.function_graphs
        for part in graph.partition_graphs
        for node in part.node
    ]
