"""`evener.audit`: the placement of one step, and its copies between devices, without running it.

    the call ──► Python code runs ──► a traced function is about to run
                                      └── the call is stopped: the function and its inputs
    a copy of the function ──► optimized, placed, partitioned ──► rejected for its inputs

The graph is the one that would run, made from the trace that the program itself uses. None of its
operations runs: variables, slots, random states, datasets and files do not change.
"""

from __future__ import annotations

import contextlib
import functools
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
from evener.auditing import Audit, read_gathered
from evener.checkpoint import random_state
from evener.errors import EvenerError, PlacementError
from evener.strategy import kernels
from evener.strategy.placed_graph import GraphReader, Origins, Placed, present, writes_variables

# TensorFlow's function that initializes new variables.
_INITIALIZATION = "initialize_variables"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedCall:
    function: Any  # The function
    inputs: tuple[Any, ...]  # Its input tensors, captures included, of any shape and dtype

    @property
    def name(self) -> str:
        return tf.compat.as_str(self.function.name)


class _Stop(BaseException):
    """Ends a stopped call; a program's ``except Exception`` does not catch it."""


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


def trains(function: Any) -> bool:
    """Whether a traced function, or one it calls, computes gradients and writes variables."""
    if not writes(function):
        return False
    graphs = function_graphs(function)
    origins = Origins(graphs, "")
    operations = (operation for graph in graphs.values() for operation in graph.get_operations())
    return any(map(origins.is_made_by_tape, operations))


def writes(function: Any) -> bool:
    """Return whether a traced function writes variables, other than to initialize them."""
    if _INITIALIZATION in str(function.name):
        return False
    graphs = function_graphs(function).values()
    return any(
        writes_variables(operation.type) for graph in graphs for operation in graph.get_operations()
    )


# One step of a compiled Keras model's ``fit``, stopped before it runs.

_MANY_BATCHES = (tf.data.Dataset, tf.distribute.DistributedDataset, keras.utils.PyDataset)


def stopped_fit(model: keras.Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StoppedCall:
    """Call ``model.fit(*args, **kwargs)`` on one batch and stop it before its first step."""
    if not getattr(model, "compiled", False):
        raise _no_step(model, "it is not compiled", "call model.compile(...) first.")
    if not args and "x" not in kwargs:
        raise _no_step(model, "there is no data", "give one batch: evener.audit(model, x, y).")
    if model.run_eagerly:
        raise _no_step(
            model, "it is compiled with run_eagerly=True", "compile it without run_eagerly."
        )
    given = _one_batch(args, kwargs)
    with _without_resets(model):
        stopped = stop_at(lambda: model.fit(**given, epochs=1, verbose=0), writes)
    if stopped is None or not trains(stopped.function):
        raise _no_step(
            model,
            "one step of fit computed no gradients, or wrote no variables",
            "give it something to train: trainable variables, a loss, an optimizer.",
        )
    return stopped


def _one_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``fit`` for one batch of known size."""
    named = {**dict(zip(("x", "y", "sample_weight"), args, strict=False)), **kwargs}
    are_arrays = all(hasattr(leaf, "shape") for leaf in tf.nest.flatten(named["x"]))
    if isinstance(named["x"], _MANY_BATCHES) or not are_arrays:
        return {**named, "steps_per_epoch": named.get("steps_per_epoch", 1)}
    parts = [named.pop(name, None) for name in ("x", "y", "sample_weight")]
    while parts[-1] is None:
        parts.pop()
    return {**named, "x": tf.data.Dataset.from_tensors(tuple(parts)), "shuffle": False}


@contextlib.contextmanager
def _without_resets(model: keras.Model) -> Iterator[None]:
    """Keep ``fit`` from resetting the metrics of the model: an audit changes nothing."""
    model.__dict__["reset_metrics"] = lambda: None
    try:
        yield
    finally:
        del model.__dict__["reset_metrics"]


def _no_step(model: keras.Model, why: str, fix: str) -> PlacementError:
    return PlacementError(
        "PLACE-033",
        f"There is no training step of {model.name!r} to audit.",
        why=f"{why}.",
        fix=fix,
    )


def audit(fn: Any, *args: Any, assume_gpus: bool = False, **kwargs: Any) -> Audit:
    """Return the device of every operation of one step, and the copies between devices.

    TensorFlow traces, optimizes and places the step for the call ``fn(*args, **kwargs)``, but does
    not run it: variables, optimizer slots, random states and data do not change. Variables that a
    function creates in its first call are created, with their initial values.

    Args:
        fn: A `tf.function`, any function that can be traced, or a compiled Keras model: then
            ``audit(model, x, y)`` audits one step of ``fit``.
        *args: Arguments of the call: tensors, arrays or datasets of any shape and dtype, as the
            function takes them.
        assume_gpus: Whether operations that request no device count as requesting a GPU. The audit
            then lists all operations that cannot run on one, on a machine without a GPU too.
        **kwargs: Keyword arguments of the call.

    Returns:
        The audit.

    Raises:
        PlacementError: PLACE-030 if ``fn`` cannot be audited, PLACE-031 if it cannot be traced,
            PLACE-032 if `tf.config.run_functions_eagerly` is on, PLACE-033 if a model is not
            compiled, PLACE-044 inside of a `tf.function` or another graph.

    >>> import evener, tensorflow as tf
    >>> weights = tf.Variable(tf.ones([3, 2]))
    >>> def step(x):
    ...     with tf.GradientTape() as tape:
    ...         loss = tf.reduce_mean(x @ weights)
    ...     weights.assign_sub(0.1 * tape.gradient(loss, weights))
    ...     return loss
    >>> audit = evener.audit(step, tf.ones([8, 3]))
    >>> sorted((op.kind, op.device) for op in audit.operations if op.type == "MatMul")
    [('forward', 'cpu:0'), ('gradient', 'cpu:0')]
    """
    with unchanged_random_state():
        stopped = _stopped(fn, args, kwargs)
        return audit_of(stopped, step=_name(fn), assume_gpus=assume_gpus)


def audit_of(
    stopped: StoppedCall,
    *,
    step: str,
    assume_gpus: bool = False,
    draw: bool = False,
) -> Audit:
    placed = place(stopped)
    reader = GraphReader(placed, assume_gpus, draw_batches(placed) if draw else {})
    return Audit(
        step=step,
        devices=present(),
        assume_gpus=assume_gpus,
        kernels_from=kernels.kernel_source(),
        operations=tuple(reader.operations),
        copies=reader.copies(),
        collectives=reader.collectives(),
        fallbacks=tuple(reader.fallbacks),
        gathered=read_gathered(placed.functions.values()),
    )


def _stopped(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StoppedCall:
    if tf.config.functions_run_eagerly():
        raise PlacementError(
            "PLACE-032",
            "tf.config.run_functions_eagerly(True) is in effect.",
            why="An audit reads the graph of a step, and an eager step has none.",
            fix="Call tf.config.run_functions_eagerly(False) before the audit.",
        )
    if not tf.executing_eagerly():
        raise PlacementError(
            "PLACE-044",
            "evener.audit was called inside of a tf.function or another graph.",
            why="There, Python code runs only once, while it is traced, and no step is called.",
            fix="Call evener.audit outside, on the function itself.",
        )
    if isinstance(fn, keras.Model):
        return stopped_fit(fn, args, kwargs)
    if not callable(fn):
        raise PlacementError(
            "PLACE-030",
            f"{fn!r} cannot be audited.",
            why="It is neither a function nor a compiled Keras model.",
            fix="Pass the function of a training step and its arguments: "
            "evener.audit(train_step, x, y).",
        )
    call = traced(fn, args, kwargs)
    stopped = stop_at(call, lambda function: True)
    assert stopped is not None, "a traced function was called and none ran"
    return stopped


def _name(fn: Any) -> str:
    if isinstance(fn, keras.Model):
        return f"{fn.name}.fit"
    while isinstance(fn, functools.partial):
        fn = fn.func
    python_function: Callable[..., Any] = getattr(fn, "python_function", fn)
    return getattr(python_function, "__qualname__", None) or type(fn).__name__
