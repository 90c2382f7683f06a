"""Inner parts of TensorFlow and Keras that the doctor looks at while a program trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf
from keras.src.backend.common import global_state
from tensorflow.python.eager import context, record

from evener._tf_private.functions import function_graphs
from evener._tf_private.patches import Patch

EAGER_OPERATIONS = Patch(
    "eager operations of a watched program",
    "tensorflow.python.pywrap_tfe:TFE_Py_FastPathExecute",
    why="Every operation that runs eagerly passes there. Public callbacks make all of them slow.",
    if_it_changes="The doctor does not see which lines run operations eagerly.",
)
DEVICE_START = Patch(
    "start of devices in a watched program",
    "tensorflow.python.eager.context:Context.ensure_initialized",
    "tensorflow.python.eager.context:Context._initialize_physical_devices",
    why="Settings of devices that come later have no effect; there is no public hook.",
    if_it_changes="The doctor does not know that a setting came too late.",
)
STRATEGIES = Patch(
    "strategies of a watched program",
    *(
        f"tensorflow.python.distribute.distribute_lib:StrategyBase.{name}"
        for name in (
            *("__init__", "scope", "run"),
            *("experimental_distribute_dataset", "distribute_datasets_from_function"),
        )
    ),
    why="A step under a strategy is one call of ``run``. Strategies of TensorFlow 1 share only "
    "this base class, which has no public name.",
    if_it_changes="The doctor does not know whether a program uses its strategies, nor the number "
    "of replicas of custom loops, and takes every batch for one that is not distributed.",
)
CROSS_ENTROPIES = Patch(
    "cross entropies of a watched program",
    "keras.src.backend.tensorflow.nn:binary_crossentropy",
    "keras.src.backend.tensorflow.nn:categorical_crossentropy",
    "keras.src.backend.tensorflow.nn:sparse_categorical_crossentropy",
    why="All cross entropies of Keras end there: classes, functions and names.",
    if_it_changes="The doctor does not compare outputs with what the loss expects.",
)
ACTIVATIONS = Patch(
    "activations of a watched program",
    *(f"keras.src.backend.tensorflow.nn:{name}" for name in ("relu", "softmax", "sigmoid", "tanh")),
    *(f"tensorflow:nn.{name}" for name in ("relu", "softmax", "sigmoid", "tanh")),
    "tensorflow:math.sigmoid",
    "tensorflow:math.tanh",
    why="What a model ends in decides what its loss may expect. Keras's layers all call them.",
    if_it_changes="The doctor does not know the last activation of eager steps.",
)
ITERATIONS = Patch(
    "iterations over datasets in a watched program",
    "tensorflow.python.data.ops.dataset_ops:DatasetV2.__iter__",
    "tensorflow.python.distribute.input_lib:DistributedDataset.__iter__",
    why="An iteration is an epoch of a custom loop. Subclasses are private.",
    if_it_changes="The doctor counts no epochs of custom loops.",
)

CONFIGURATION = Patch(
    "settings of a watched program",
    *(
        f"tensorflow:config.{name}"
        for name in (
            "set_visible_devices",
            "set_logical_device_configuration",
            "set_soft_device_placement",
            "run_functions_eagerly",
            "experimental.set_memory_growth",
            "experimental.enable_op_determinism",
            "experimental.enable_tensor_float_32_execution",
            "optimizer.set_jit",
            "threading.set_inter_op_parallelism_threads",
            "threading.set_intra_op_parallelism_threads",
        )
    ),
    "tensorflow:data.experimental.enable_debug_mode",
    "keras:mixed_precision.set_global_policy",
    "keras:config.set_dtype_policy",
    "keras:config.set_floatx",
    "keras:backend.set_floatx",
    why="To know settings with their line, and those that come too late.",
    if_it_changes="The doctor does not see settings that have no effect.",
)
PINS = Patch(
    "pins of a watched program",
    "tensorflow:device",
    why="To know the device blocks of a program with their lines.",
    if_it_changes="The doctor does not see device blocks.",
)


def is_in_layer_call() -> bool:
    """Return whether a layer of Keras is being called.

    Why: a layer that is made then is made anew in each call; the context has no public name.
    If it changes: the doctor does not see layers that calls make.
    """
    return global_state.get_global_attribute("current_call_ctx") is not None


def are_devices_started() -> bool:
    """Return whether TensorFlow has started its devices; see `DEVICE_START`."""
    return context.context()._initialized


# Lets no gradient tape record what is computed inside.
# Why: the doctor's sums must not be kept by tapes of the program, and there is no public context
# for all tapes. If it changes: tapes keep a few numbers more.
unrecorded = record.stop_recording


def kernel_times(folder: str) -> dict[str, dict[str, tuple[int, float]]]:
    """Return number and seconds of the events of a profile, by plane and name.

    Why: TensorFlow writes profiles as protocol buffers, whose module has no public name.
    If it changes: the doctor has no times of kernels and stages of the input.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    found: dict[str, dict[str, tuple[int, float]]] = {}
    for path in Path(folder).rglob("*.xplane.pb"):
        space: Any = xplane_pb2.XSpace()
        space.ParseFromString(path.read_bytes())
        for plane in space.planes:
            times = found.setdefault(plane.name, {})
            for line in plane.lines:
                for event in line.events:
                    name = plane.event_metadata[event.metadata_id].name
                    number, seconds = times.get(name, (0, 0.0))
                    times[name] = (number + 1, seconds + event.duration_ps / 1e12)
    return found


def graph_of(tensor: Any) -> tf.Graph | None:
    """Return the graph of a symbolic tensor; None for an eager one."""
    is_eager = isinstance(tensor, tf.__internal__.EagerTensor)
    return None if is_eager else getattr(tensor, "graph", None)


def last_graph(function: Any) -> Any:
    """Return the graph of the last trace of a `tf.function`, or None.

    Why: there is no public list of the traces. If it changes: the doctor does not see constants.
    """
    traces = function._list_all_concrete_functions()
    return traces[-1].graph if traces else None


def is_loop_body(graph: Any) -> bool:
    """Return whether a graph is a body of a vectorized map, in which state must not change.

    Why: `tf.vectorized_map` traces a body as a function of this name. If it changes: gradients that
    are taken in one are not recorded, and the watched program may fail.
    """
    while graph is not None:
        if "loop_body" in str(getattr(graph, "name", "")):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def operations_of_map(dataset: Any) -> list[tf.Operation]:
    """Return the operations of the function of a stage of a pipeline, those it calls included.

    Why: what a map reads or draws is known by its operations, and `tf.data` has no public list.
    If it changes: the doctor does not know what stages of the input do.
    """
    function = getattr(getattr(dataset, "_map_func", None), "_function", None)
    graphs = [] if function is None else function_graphs(function).values()
    return [operation for graph in graphs for operation in graph.get_operations()]
