"""One step as TensorFlow would run it, without running it.

    the call ──► Python runs as ever ──► a traced function is about to run
                                         └── stopped here: the function and its inputs
    a copy of the function ──► optimized, placed, cut into parts ──► refused for its inputs

So the graph is the one that runs, made from the trace that the program itself uses, and no
operation of it has run: variables, slots, random states, datasets and files are as before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from evener import _tf_private


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A traced function that was about to run.

    Args:
        function: The function.
        inputs: The tensors it would have been given.
    """

    function: Any
    inputs: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The name under which TensorFlow knows it."""
        return tf.compat.as_str(self.function.name)


class _Stop(BaseException):
    """Comes out of the call that was stopped; no handler of a program's errors sees it."""

    def __init__(self, stopped: Stopped) -> None:
        super().__init__()
        self.stopped = stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """What TensorFlow made of a function.

    Args:
        graph: The placed graph: a ``GraphDef`` in which every node has its device.
        parts: The graphs of the devices, with what they send each other.
        written: The placed graph before it was optimized.
        functions: The Python graphs of the function and of all it calls, by name.
        name: The function's name among them.
        inputs: The tensors it was made ready for.
    """

    graph: Any
    parts: tuple[Any, ...]
    written: Any
    functions: dict[str, tf.Graph]
    name: str
    inputs: tuple[Any, ...]


def stop_at(call: Callable[[], Any], wanted: Callable[[Any], bool]) -> Stopped | None:
    """Make a call and stop it before a traced function runs.

    Args:
        call: What to call, without arguments.
        wanted: Says of a function whether to stop there; others run.

    Returns:
        The function, or None if the call ended without one.
    """

    def watch(function: Any, inputs: tuple[Any, ...]) -> None:
        if wanted(function):
            raise _Stop(Stopped(function=function, inputs=inputs))

    try:
        with _tf_private.before_functions_run(watch):
            call()
    except _Stop as stop:
        return stop.stopped
    return None


def place(stopped: Stopped) -> Placed:
    """Return how TensorFlow places a function that was stopped."""
    given = (stopped.function, stopped.inputs)
    graphs = _tf_private.placed_without_running(*given, optimized=True)
    if graphs is None:
        return _compiled(stopped)
    written = _tf_private.placed_without_running(*given, optimized=False)
    return Placed(
        graph=graphs.post_optimization_graph,
        parts=tuple(graphs.partition_graphs),
        written=written.post_optimization_graph,
        functions=_tf_private.function_graphs(stopped.function),
        name=stopped.name,
        inputs=stopped.inputs,
    )


def _compiled(stopped: Stopped) -> Placed:
    """Return a function that XLA compiles as a whole: one call, on one device."""
    functions = _tf_private.function_graphs(stopped.function)
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
    """Return where a compiled function runs: beside its variables, else on the first GPU."""
    beside = [one.device for one in inputs if one.dtype == tf.resource]
    gpus = [one.name for one in tf.config.list_logical_devices("GPU")]
    return [*beside, *gpus, "/device:CPU:0"][0]
