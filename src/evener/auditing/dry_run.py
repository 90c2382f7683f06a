"""The placed graph of one step, without running the step.

    the call ──► Python code runs ──► a traced function is about to run
                                      └── the call is stopped: the function and its inputs
    a copy of the function ──► optimized, placed, partitioned ──► rejected for its inputs

The graph is the one that would run, made from the trace that the program itself uses. None of its
operations runs: variables, slots, random states, datasets and files do not change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from evener._tf_private.dry_run import placed_without_running
from evener._tf_private.functions import before_functions_run, function_graphs


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedCall:
    """A call of a traced function that was stopped before it ran.

    Args:
        function: The function.
        inputs: Its input tensors, captures included, of any shape and dtype.
    """

    function: Any
    inputs: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The name of the function in TensorFlow."""
        return tf.compat.as_str(self.function.name)


class _Stop(BaseException):
    """Ends a stopped call; a program's ``except Exception`` does not catch it."""

    def __init__(self, stopped: StoppedCall) -> None:
        super().__init__()
        self.stopped = stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A function, optimized and placed by TensorFlow.

    Args:
        graph: The placed graph: a ``GraphDef`` in which every node has a device.
        parts: The graph of each device, with its ``_Send`` and ``_Recv`` nodes.
        written: The placed graph without optimization.
        functions: The Python graphs of the function and of all functions it calls, by name.
        name: The function's name among them.
        inputs: The input tensors for which it was placed, of any shape and dtype.
    """

    graph: Any
    parts: tuple[Any, ...]
    written: Any
    functions: dict[str, tf.Graph]
    name: str
    inputs: tuple[Any, ...]


def stop_at(call: Callable[[], Any], wanted: Callable[[Any], bool]) -> StoppedCall | None:
    """Make a call and stop it before a traced function runs.

    Args:
        call: A function without arguments.
        wanted: Returns whether to stop before a traced function; other functions run.

    Returns:
        The stopped call, or None if no such function was called.
    """

    def watch(function: Any, inputs: tuple[Any, ...]) -> None:
        if wanted(function):
            raise _Stop(StoppedCall(function=function, inputs=inputs))

    try:
        with before_functions_run(watch):
            call()
    except _Stop as stop:
        return stop.stopped
    return None


def place(stopped: StoppedCall) -> Placed:
    """Return the function of a stopped call as TensorFlow places it."""
    given = (stopped.function, stopped.inputs)
    graphs = placed_without_running(*given, optimized=True)
    if graphs is None:
        return _compiled(stopped)
    written = placed_without_running(*given, optimized=False)
    return Placed(
        graph=graphs.post_optimization_graph,
        parts=tuple(graphs.partition_graphs),
        written=written.post_optimization_graph,
        functions=function_graphs(stopped.function),
        name=stopped.name,
        inputs=stopped.inputs,
    )


def _compiled(stopped: StoppedCall) -> Placed:
    """Return a function that XLA compiles: a single call, on one device."""
    functions = function_graphs(stopped.function)
    graph = tf.compat.v1.GraphDef()
    graph.library.CopyFrom(functions[stopped.name].as_graph_def().library)
    graph.library.function.add().CopyFrom(stopped.function.definition)
    call = graph.node.add(name="compiled", op="StatefulPartitionedCall")
    call.attr["f"].func.name = stopped.name
    call.device = _device_of_all(stopped.inputs)
    return Placed(
        graph=graph,
        parts=(),
        written=graph,
        functions=functions,
        name=stopped.name,
        inputs=stopped.inputs,
    )


def _device_of_all(inputs: tuple[Any, ...]) -> str:
    """Return the device of a compiled function: that of its variables, else the first GPU."""
    of_variables = [tensor.device for tensor in inputs if tensor.dtype == tf.resource]
    gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
    return [*of_variables, *gpus, "/device:CPU:0"][0]
