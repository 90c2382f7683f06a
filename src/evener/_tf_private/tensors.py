"""Tensors and variables: the device asked for, values, memory, and variables in the making."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import wrapt  # of TensorFlow
from tensorflow.python.distribute import one_device_strategy, values
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import control_flow_util, resource_variable_ops

from evener._tf_private.patches import Patch


def explicit_device() -> str:
    """Return the device that an enclosing `tf.device` asks for, or an empty string.

    Why: a variable that is made under an explicit device (a pinned layer, or an optimizer's
    slot beside its variable) must stay there, and there is no public getter.
    If it changes: such variables are placed by the owner rule instead.
    """
    return "" if not tf.executing_eagerly() else eager_context.context().device_name or ""


def current_device() -> str:
    """Return the device that a `tf.device` around asks for, in a graph too, or an empty string.

    Why: Keras makes variables after the call that asked for them, when `tf.device` has ended,
    and there is no public getter. If it changes: variables built in a model's first call are
    made on the first device.
    """
    if not tf.executing_eagerly():
        graph: Any = tf.compat.v1.get_default_graph()
        for spec in graph._device_function_stack.peek_objs():
            if spec.raw_string:
                return spec.raw_string
    return eager_context.context().device_name or ""


# Whether a graph, or one around it, is compiled by XLA.
# Why: XLA knows one device, and ignores or refuses others. While a function with
# ``jit_compile=True`` is traced, this context alone tells.
# If it changes: a pinned layer in such a function silently runs on another device.
in_xla: Callable[[Any], bool] = control_flow_util.GraphOrParentsInXlaContext


LOCAL_DEVICES = Patch(
    "the old list of devices",
    "tensorflow.python.client.device_lib:list_local_devices",
    why="Many programs count their GPUs by ``device_lib.list_local_devices``, which never had a "
    "public name.",
    if_it_changes="Such programs do not find stand-ins as GPUs.",
)


# Why: an argument of a step may be a sparse, ragged or other composite tensor, which is made of
# tensors, and there is no public name for the class.
# If it changes: `strategy.run` and `evener.distribute` take no such arguments.
CompositeTensor = tf.__internal__.CompositeTensor

# The extended strategy of `tf.distribute.OneDeviceStrategy`.
# Why: most of what TensorFlow and Keras ask of a strategy of one replica is answered there, and
# the class has no public name.
# If it changes: strategies cannot be made, or TensorFlow says that a method is not implemented.
OneDeviceExtended: Any = one_device_strategy.OneDeviceExtended


def is_eager_tensor(value: Any) -> bool:
    """Return whether a value is a tensor outside of all graphs.

    Why: there is no public name for its class. If it changes: eager updates are computed on the
    first device.
    """
    return isinstance(value, framework_ops.EagerTensor)


DRAWING = ("random_standard_normal", "random_uniform", "random_uniform_int", "truncated_normal")
TRACED_CALLS = Patch(
    "calls that eager code makes and a trace has to answer",
    # TensorFlow refuses the length of a tensor in a graph, even where it is known.
    "tensorflow:__internal__.SymbolicTensor.__len__",
    # Of arrays, which are tensors already while a step is traced.
    "tensorflow:constant",
    # The first calls of a hoisted step run both ways, and print once.
    "tensorflow.python.ops.gen_logging_ops:print_v2",
    # An eager call draws its seed from the context, and the first numbers of Philox for it. Its two
    # seeds are the key and the upper half of the counter of a kernel without a state. A kernel that
    # draws without a generator keeps its state where nothing can read it.
    "tensorflow.python.framework.random_seed:get_seed",
    *(f"tensorflow.python.ops.gen_random_ops:{name}" for name in DRAWING),
    why="An eager step that becomes a function has to compute in a graph what it does eagerly, and "
    "a step that cannot go on after a restart is known by what it draws. There are no public "
    "hooks.",
    if_it_changes="Steps with `len(batch)`, `tf.constant(array)` or random numbers are not "
    "hoisted, and run as they are written; `tf.print` prints twice in the first calls of a hoisted "
    "step; `evener run --checkpoint` resumes a step that draws without a generator with other "
    "numbers.",
)
HOST_READS = Patch(
    "reads of tensors on the host",
    "tensorflow.python.framework.ops:_EagerTensorBase._numpy",
    why="`numpy()`, `float()`, `bool()`, `print` and `np.array` all end there.",
    if_it_changes="The doctor does not see what brings tensors to the host.",
)


def symbolic_lengths() -> contextlib.AbstractContextManager[None]:
    """Let ``len(tensor)`` be the first size of a tensor in a graph, if that is known."""

    def length(original: Callable[[Any], int], tensor: tf.Tensor) -> int:
        size = tensor.shape[0] if tensor.shape.rank else None
        return original(tensor) if size is None else size

    return TRACED_CALLS.applied_each({"__len__": length})


def symbolic_constants() -> contextlib.AbstractContextManager[None]:
    """Let ``tf.constant(tensor)`` of a graph be that tensor, rounded to another floating dtype."""

    def constant(original, value, dtype=None, shape=None, name: str = "Const") -> Any:
        if shape is None and tf.is_symbolic_tensor(value):
            wanted = value.dtype if dtype is None else tf.as_dtype(dtype)
            if wanted == value.dtype:
                return tf.identity(value)
            if wanted.is_floating and value.dtype.is_floating:
                return tf.cast(value, wanted)
        return original(value, dtype, shape, name)

    return TRACED_CALLS.applied_each({"constant": constant})


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A text that `tf.print` was given."""

    text: tf.Tensor
    stream: str  # Its name in TensorFlow
    end: str

    def show(self) -> None:
        tf.raw_ops.PrintV2(input=self.text, output_stream=self.stream, end=self.end)


@contextlib.contextmanager
def kept_prints(*, shows: bool = False) -> Generator[list[Printed]]:
    """Yield a list of what `tf.print` is given here, which prints only if asked to.

    Prints in other graphs, such as the bodies of loops, stay where they are.
    """
    graph, prints = _graph(), list[Printed]()

    def keep(
        original: Callable[..., Any],
        text: tf.Tensor,
        output_stream: str = "stderr",
        end: str = "\n",
        name: str | None = None,
    ) -> Any:
        if _graph() is not graph:
            return original(text, output_stream=output_stream, end=end, name=name)
        prints.append(Printed(text=tf.convert_to_tensor(text), stream=output_stream, end=end))
        if shows:
            prints[-1].show()
        return None if graph is None else tf.no_op()

    with TRACED_CALLS.applied_each({"print_v2": keep}):
        yield prints


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def unwrapped(value: Any) -> Any:
    """Return the container of Python in one of TensorFlow's wrappers around it, or the value.

    Why: `tf.Module` wraps dictionaries and tuples that are its attributes. If it changes: steps
    that use such an attribute are not hoisted.
    """
    return value.__wrapped__ if issubclass(type(value), wrapt.ObjectProxy) else value


# Memory for tensors: arrays that TensorFlow takes as they are, and zeros that take none.

ALIGNMENT = 64
"""TensorFlow takes arrays that begin at such an address as they are, and copies others."""


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """Return a copy that `as_tensor` takes without copying it again."""
    if array.dtype.hasobject:
        return np.array(array, copy=True)
    memory = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    copy = aligned(memory, array.nbytes).view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def as_tensor(array: np.ndarray) -> tf.Tensor:
    """Return a tensor on the host; of an aligned array of numbers, in the same memory."""
    is_aligned = array.ctypes.data % ALIGNMENT == 0 and array.flags.c_contiguous
    if is_aligned and array.dtype.kind in "biufc" and array.flags.writeable and array.size:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    with tf.device("cpu:0"):
        return tf.convert_to_tensor(array)


def unwritten_zeros(shape: Sequence[int], dtype: tf.DType) -> tf.Tensor | None:
    """Return zeros on the host that take no memory until they are written."""
    # Types of the same size, which every library reads.
    plain = {2: np.uint16, 4: np.uint32, 8: np.uint64}.get(dtype.size)
    num_bytes = math.prod(shape) * dtype.size
    if not num_bytes or plain is None or not hasattr(mmap, "MAP_PRIVATE"):
        return None
    # Pages that do not count as memory of the process before they are written.
    uncounted = getattr(mmap, "MAP_NORESERVE", 0x4000)
    try:
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | uncounted)
    except OSError:
        return None
    array = np.frombuffer(pages, plain)[: num_bytes // dtype.size]
    tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return tf.reshape(tf.bitcast(tensor, dtype), shape)


def aligned(memory: np.ndarray, num_bytes: int) -> np.ndarray:
    """Return the part of some memory that begins at such an address."""
    begin = -memory.ctypes.data % ALIGNMENT
    return memory[begin : begin + num_bytes]


def local_values(value: Any) -> tuple[Any, ...]:
    """Return the values of all replicas of a distributed value, in the order of replicas."""
    return tuple(value.values) if is_per_replica(value) else (value,)


def is_per_replica(value: Any) -> bool:
    return isinstance(value, values.DistributedValues)


@contextlib.contextmanager
def unallocated_variables() -> Generator[None]:
    """Let variables that are made here have no value, and take no memory.

    Functions that use them can be traced, but not run.

    Why: a traced step needs the shapes of its variables alone. TensorFlow makes such variables when
    it loads a saved model, and has no public way; Keras cannot train a model that is made in a
    `tf.Graph`, because it makes the slots of optimizers outside of it.
    If it changes: the costs of a model can be found only where the model fits into memory.
    """

    def create(_: Callable[..., Any], **arguments: Any) -> Any:
        shape, dtype = _kind_of(arguments["initial_value"], arguments.get("dtype"))
        return resource_variable_ops.UninitializedVariable(
            trainable=arguments.get("trainable"),
            shape=arguments.get("shape") or shape,
            dtype=dtype,
            name=arguments.get("name"),
        )

    with tf.variable_creator_scope(create):
        yield


def _kind_of(initial: Any, dtype: Any) -> tuple[tf.TensorShape, tf.DType]:
    """Return shape and dtype of an initial value, which is not computed if it is a function."""
    if callable(initial):
        with contextlib.suppress(Exception), tf.Graph().as_default():
            value: Any = initial()
            made = tf.convert_to_tensor(value, dtype=dtype)
            if made.shape.is_fully_defined():
                return made.shape, made.dtype
        initial = initial()
    made = tf.convert_to_tensor(initial, dtype=dtype)
    return made.shape, made.dtype


def keras_variable_being_made(initial_value: Any) -> Any | None:
    """Return the Keras variable for which a `tf.Variable` is being made, if it can be told.

    Why: the owner of a variable is chosen by its path and size before it exists, and TensorFlow's
    creators are only given the initial value, a closure over the Keras variable. If it changes:
    owners are chosen by the order of creation alone, and owner rules by path match the short name.
    """
    for cell in getattr(initial_value, "__closure__", None) or ():
        if isinstance(cell.cell_contents, keras.Variable):
            return cell.cell_contents
    return None


def plain_variable(initial_value: Any, dtype: tf.DType) -> tf.Variable:
    """Return a variable that no creator scope knows of.

    Why: the doctor's counters in a graph are not weights of the program: a strategy must not give
    them an owner or mirror them. If it changes: the doctor's watched run fails.
    """
    return resource_variable_ops.ResourceVariable(
        initial_value=initial_value, dtype=dtype, trainable=False, name="evener_plain"
    )


_VARIABLES = Patch(
    "new variables",
    "keras:Variable.__init__",
    "keras:Variable._initialize",
    "keras:Variable._deferred_initialize",
    why="A `tf.variable_creator_scope` around a whole program holds in one thread only, and ends "
    "with ``keras.utils.clear_session``, which begins a new graph. Keras creates the variables "
    "that a subclassed model builds in its first call after that call, outside of every "
    "`tf.device`. A step that is only traced needs no values, and its model need not fit into this "
    "machine.",
    if_it_changes="The variables of an unchanged script have no owner, and are all on one device, "
    "and so are those that are created later; `evener estimate` counts only models that fit into "
    "the memory of this machine.",
)


def around_new_variables(scope: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
    """Create every Keras variable from now on inside a context, in every thread."""

    def initialize(original: Callable[..., None], variable: keras.Variable, value: Any) -> None:
        with scope():
            original(variable, value)

    _VARIABLES.apply_each({"_initialize": initialize}, "scope")


def leave_large_variables_unwritten(least_bytes: int) -> None:
    """Let large variables of Keras begin with zeros that take no memory until they are written."""

    def initialize(original: Callable[..., None], variable: Any, value: Any) -> None:
        # A function is an initializer of Keras; other values are those of the program.
        if callable(value) and tf.executing_eagerly():
            dtype = tf.as_dtype(variable._dtype)
            if math.prod(variable._shape) * dtype.size >= least_bytes:
                zeros = unwritten_zeros(variable._shape, dtype)
                value = value if zeros is None else zeros
        original(variable, value)

    _VARIABLES.apply_each({"_initialize": initialize}, "values")


def keep_devices_of_waiting_variables() -> None:
    """Create Keras variables whose creation is deferred on the device that was requested."""
    replacements = {"__init__": _keep_device, "_deferred_initialize": _create_late}
    _VARIABLES.apply_each(replacements, "devices")


def _keep_device(original: Callable[..., None], variable, /, *args, **kwargs) -> None:
    original(variable, *args, **kwargs)
    if variable._value is None:
        variable._evener_device = current_device()


def _create_late(original: Callable[..., None], variable: Any) -> None:
    device = getattr(variable, "_evener_device", "")
    with tf.device(device) if device else contextlib.nullcontext():
        original(variable)


def waits_for(variable: Any, device: str) -> bool:
    """Set the device of a Keras variable without a value; return whether it has no value."""
    if variable._value is None:
        variable._evener_device = device
    return variable._value is None


def renew_variable(variable: Any) -> tf.Variable:
    """Replace the value of a Keras variable by one on the current device; return the old one.

    Why: a `tf.Variable` cannot change its device. If it changes: built layers cannot be pinned.
    """
    old = variable._value
    value = tf.identity(old)
    strategy = old._distribute_strategy
    scope: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if strategy is not None and tf.distribute.get_strategy() is not strategy:
        scope = strategy.scope()
    with tf.init_scope(), scope:
        variable._initialize(value)
    return old


def dtype_of_variable(handle: Any) -> tf.DType | None:
    """Return the type of the values of a variable, by its handle; None for other resources.

    Why: a step has handles alone, and there is no public way from a handle to its variable.
    If it changes: a step that another worker's death breaks off is not computed again.
    """
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or not data.shape_and_type:
        return None
    return tf.as_dtype(data.shape_and_type[0].dtype)
