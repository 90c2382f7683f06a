"""The placed graph of one step, without running the step.

    the call ──► Python code runs ──► a traced function is about to run
                                      └── the call is stopped: the function and its inputs
    a copy of the function ──► optimized, placed, partitioned ──► rejected for its inputs

The graph is the one that would run, made from the trace that the program itself uses. None of its
operations runs: variables, slots, random states, datasets and files do not change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from evener._tf_private.functions import (
    before_functions_run,
    function_graphs,
    is_traced_function,
    placed_without_running,
)
from evener._tf_private.models import build_for_step
from evener.checkpoint import random_state
from evener.errors import EvenerError, PlacementError

# Fragments of the errors of TensorFlow and NumPy for a symbolic tensor used as a value.
_EAGER_ONLY = (
    "symbolic",
    "numpy()",
    "'numpy'",
    "NumPy array",
    "in Graph Execution",
    "in graph execution",
    "eager execution",
    "EagerTensor",
    "tf.function only supports singleton tf.Variables",
)


def traced(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
    """Trace a function, which creates its variables, and return a call that would run it."""
    if isinstance(fn, tf.types.experimental.ConcreteFunction):
        return lambda: fn(*args, **kwargs)
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, keras.Model) and getattr(fn, "__name__", "") == "train_step":
        # Keras creates the variables of optimizers and metrics before it traces a step.
        build_for_step(owner, args[0])
    function = fn if is_traced_function(fn) else tf.function(fn)
    try:
        function.get_concrete_function(*args, **kwargs)
    except EvenerError:
        raise
    except Exception as error:
        if not any(sign in str(error) for sign in _EAGER_ONLY):
            raise
        name = getattr(fn, "__qualname__", None) or type(fn).__name__
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise PlacementError(
            "PLACE-031",
            f"{name} cannot be traced, so it cannot be audited.",
            why=f"An audit reads the graph of a step. Tracing raised {type(error).__name__}: "
            f"{lines[-1].strip() if lines else ''}",
            fix="Audit the part without .numpy(), float(...) and other reads of values, or make it "
            "a tf.function.",
        ) from error
    return lambda: function(*args, **kwargs)


@contextlib.contextmanager
def unchanged_random_state() -> Iterator[None]:
    """Restore the random states of Python, NumPy and TensorFlow, unless variables were created.

    The random numbers of initial values must stay drawn: otherwise the next variables would start
    with the same values.
    """
    created = False

    def observe(next_creator: Any, **kwargs: Any) -> Any:
        nonlocal created
        created = True
        return next_creator(**kwargs)

    before = random_state.read()
    try:
        with tf.variable_creator_scope(observe):
            yield
    finally:
        if not created:
            random_state.restore(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedCall:
    function: Any  # The function
    inputs: tuple[Any, ...]  # Its input tensors, captures included, of any shape and dtype

    @property
    def name(self) -> str:
        return tf.compat.as_str(self.function.name)


class _Stop(BaseException):
    """Ends a stopped call; a program's ``except Exception`` does not catch it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    graph: Any  # The placed graph: a ``GraphDef`` in which every node has a device
    parts: tuple[Any, ...]  # The graph of each device, with its ``_Send`` and ``_Recv`` nodes
    written: Any  # The placed graph without optimization
    # The Python graphs of the function and of all functions it calls, by name
    functions: dict[str, tf.Graph]
    name: str  # The function's name among them
    inputs: tuple[Any, ...]  # The input tensors for which it was placed, of any shape and dtype


def stop_at(call: Callable[[], Any], wanted: Callable[[Any], bool]) -> StoppedCall | None:
    def watch(function: Any, inputs: tuple[Any, ...]) -> None:
        if wanted(function):
            raise _Stop(function, inputs)

    try:
        with before_functions_run(watch):
            call()
    except _Stop as stop:
        function, inputs = stop.args
        return StoppedCall(function=function, inputs=inputs)
    return None


def place(stopped: StoppedCall) -> Placed:
    inputs, functions = stopped.inputs, function_graphs(stopped.function)
    graphs = placed_without_running(stopped.function, inputs, optimized=True)
    if graphs is None:
        # XLA compiles it: a single call, on the device of its variables, else the first GPU.
        graph = tf.compat.v1.GraphDef()
        graph.library.CopyFrom(functions[stopped.name].as_graph_def().library)
        graph.library.function.add().CopyFrom(stopped.function.definition)
        call = graph.node.add(name="compiled", op="StatefulPartitionedCall")
        call.attr["f"].func.name = stopped.name
        owners = [tensor.device for tensor in inputs if tensor.dtype == tf.resource]
        gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
        call.device = [*owners, *gpus, "/device:CPU:0"][0]
        parts, written = (), graph
    else:
        graph, parts = graphs.post_optimization_graph, tuple(graphs.partition_graphs)
        plain = placed_without_running(stopped.function, inputs, optimized=False)
        written = plain.post_optimization_graph
    return Placed(
        graph=graph,
        parts=parts,
        written=written,
        functions=functions,
        name=stopped.name,
        inputs=inputs,
    )


_ARGUMENTS = ("_Arg", "_DeviceArg")
_FORWARDING = ("Identity", "Switch", "Enter")


def draw_batches(placed: Placed) -> dict[str, list[Any]]:
    """Draw a batch from every iterator of a placed function, as its step would.

    The iterators lose the batch, so the program must end after the audit.
    """
    nodes = {node.name: node for node in placed.graph.node}
    drawn: dict[str, list[Any]] = {}
    for name, node in nodes.items():
        if node.op != "IteratorGetNext":
            continue
        source: Any = nodes.get(node.input[0].partition(":")[0])
        while source is not None and source.op in _FORWARDING:
            source = nodes.get(source.input[0].partition(":")[0])
        if source is None or source.op not in _ARGUMENTS:
            continue
        # The audit reports unknown sizes of an iterator that is exhausted or fails.
        with contextlib.suppress(tf.errors.OpError):
            shapes = node.attr["output_shapes"].list.shape
            drawn[name] = tf.raw_ops.IteratorGetNext(
                iterator=placed.inputs[source.attr["index"].i],
                output_types=[tf.dtypes.as_dtype(t) for t in node.attr["output_types"].list.type],
                output_shapes=[tf.TensorShape(shape) for shape in shapes],
            )
    return drawn
