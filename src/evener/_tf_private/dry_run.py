"""The placed graph of a traced function that does not run."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute as eager_execute

GUARD = "evener_guard"
"""The input of a function under audit whose type is wrong, so that it does not run."""


_AUDITS = itertools.count()


def placed_without_running(function: Any, inputs: Sequence[Any], *, optimized: bool) -> Any:
    """Return what TensorFlow makes of a traced function for these inputs, and do not run it.

    Why: TensorFlow optimizes, places and cuts a function when it is first called, and checks
    the types of its inputs after that. So a copy of the function, with one more input that
    nobody uses, is called with a wrong type for that input: everything is made ready, and
    nothing runs. The public way (``tf.summary.trace_on(graph=True)``) runs the step.
    If it changes: the call does not raise, and the audit says so.

    Args:
        function: Function that `before_functions_run` handed over.
        inputs: Inputs of the function.
        optimized: Whether as it would run; else as it is written, with nothing left out.

    Returns:
        A ``RunMetadata.FunctionGraphs``: the graph before and after placement, and its parts.
    """
    context = eager_context.context()
    definition = type(function.definition)()
    definition.CopyFrom(function.definition)
    name = f"evener_audit_{next(_AUDITS)}"
    definition.signature.name = name
    definition.signature.input_arg.add(name=GUARD, type=tf.int32.as_datatype_enum)
    context.add_function_def(definition)
    config = tf.compat.v1.ConfigProto.FromString(
        context.function_call_options.config_proto_serialized
    )
    if not optimized:
        config.graph_options.rewrite_options.disable_meta_optimizer = True
    num_outputs = len(definition.signature.output_arg)
    with tf.device("/CPU:0"):
        wrong = tf.constant(0.0)
    try:
        with _graphs_collected(context) as collected:
            try:
                eager_execute.execute(
                    name,
                    num_outputs,
                    [*inputs, wrong],
                    ("executor_type", "", "config_proto", config.SerializeToString()),
                    context,
                )
            except tf.errors.InvalidArgumentError as error:
                if name not in error.message or "was expected to be" not in error.message:
                    raise
            else:
                raise RuntimeError(f"{name} ran: TensorFlow no longer checks its inputs first")
    finally:
        context.remove_function(name)
    return collected[0] if collected else None


@contextlib.contextmanager
def _graphs_collected(context: Any) -> Iterator[list[Any]]:
    """Collect the graphs of all functions that are made ready inside."""
    collected: list[Any] = []

    def flush() -> None:
        # Graphs are handed over when the next operation has run.
        with tf.device("/CPU:0"):
            tf.add(1.0, 1.0)

    # Its own graph would be collected too, the first time.
    flush()
    context.enable_graph_collection()
    context.export_run_metadata()
    try:
        yield collected
        flush()
        collected.extend(context.export_run_metadata().function_graphs)
    finally:
        context.disable_graph_collection()
