"""Variables in the making, those without memory included."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.ops import (
    resource_variable_ops,
)

from evener._tf_private.devices import current_device
from evener._tf_private.patches import Patch
from evener.aligned import unwritten_zeros


@contextlib.contextmanager
def unallocated_variables() -> Iterator[None]:
    """Let variables that are made here have no value, and take no memory.

    Functions that use them can be traced, but not run.

    Why: a traced step needs the shapes of its variables alone. TensorFlow makes such variables when
    it loads a saved model, and has no public way; Keras cannot train a model that is made in a
    `tf.Graph`, because it makes the slots of optimizers outside of it.
    If it changes: the costs of a model can be found only where the model fits into memory.
    """
    with tf.variable_creator_scope(_create):
        yield


def _create(_: Callable[..., Any], **arguments: Any) -> Any:
    shape, dtype = _kind_of(arguments["initial_value"], arguments.get("dtype"))
    return resource_variable_ops.UninitializedVariable(
        trainable=arguments.get("trainable"),
        shape=arguments.get("shape") or shape,
        dtype=dtype,
        name=arguments.get("name"),
    )


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

    Why: the owner of a variable is chosen by its path and size before it exists, and
    TensorFlow's creators are only given the initial value, a closure over the Keras
    variable. If it changes: owners are chosen by the order of creation alone, and owner
    rules by path match the short name.
    """
    closure = getattr(initial_value, "__closure__", None) or ()
    for cell in closure:
        if isinstance(cell.cell_contents, keras.Variable):
            return cell.cell_contents
    return None


def plain_variable(initial_value: Any, dtype: tf.DType) -> tf.Variable:
    """Return a variable that no creator scope knows of.

    Why: the doctor's counters in a graph are not weights of the program: a strategy must not give
    them an owner or mirror them. If it changes: the doctor's watched run fails.
    """
    return resource_variable_ops.ResourceVariable(
        initial_value=initial_value, dtype=dtype, trainable=False
    )


_NEW = Patch(
    "new variables",
    "keras:Variable._initialize",
    why="A `tf.variable_creator_scope` around a whole program holds in one thread only, and ends "
    "with ``keras.utils.clear_session``, which begins a new graph.",
    if_it_changes="The variables of an unchanged script have no owner, and are all on one device.",
)
_UNWRITTEN = Patch(
    "values of large variables",
    "keras:Variable._initialize",
    why="Only the sizes of variables matter where a step is traced and not run. A model that does "
    "not fit into this machine has to be made all the same, and there is no other way to make it "
    "without its values.",
    if_it_changes="`evener estimate` counts only models that fit into the memory of this machine.",
)
_WAITING = Patch(
    "devices of variables that wait",
    "keras:Variable.__init__",
    why="Keras creates the variables that a subclassed model builds in its first call after that "
    "call, outside of every `tf.device`.",
    if_it_changes="Such variables are made on the first device.",
)
_MADE_LATER = Patch(
    "variables that have waited",
    "keras:Variable._deferred_initialize",
    why=_WAITING.why,
    if_it_changes=_WAITING.if_it_changes,
)


def around_new_variables(scope: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
    """Create every Keras variable from now on inside a context, in every thread."""

    def wrap(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def initialize(self: keras.Variable, value: Any) -> None:
            with scope():
                original(self, value)

        return initialize

    _NEW.apply(wrap)


def leave_large_variables_unwritten(least_bytes: int) -> None:
    """Let large variables of Keras begin with zeros that take no memory until they are written.

    Args:
        least_bytes: Bytes from which a variable is large.
    """

    def wrap(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def initialize(self: Any, value: Any) -> None:
            # A function is an initializer of Keras; other values are those of the program.
            if callable(value) and tf.executing_eagerly():
                dtype = tf.as_dtype(self._dtype)
                if math.prod(self._shape) * dtype.size >= least_bytes:
                    found = unwritten_zeros(self._shape, dtype)
                    value = value if found is None else found
            original(self, value)

        return initialize

    _UNWRITTEN.apply(wrap)


def keep_devices_of_waiting_variables() -> None:
    """Create Keras variables whose creation is deferred on the device that was requested."""
    _WAITING.apply(_keeping_device)
    _MADE_LATER.apply(_on_kept_device)


def _keeping_device(begin: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(begin)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        if self._value is None:
            self._evener_device = current_device()

    return init


def _on_kept_device(finish: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(finish)
    def deferred_initialize(self: Any) -> None:
        device = getattr(self, "_evener_device", "")
        with tf.device(device) if device else contextlib.nullcontext():
            finish(self)

    return deferred_initialize


def waits_for(variable: Any, device: str) -> bool:
    """Set the device of a Keras variable without a value; return whether it has no value.

    See `keep_devices_of_waiting_variables`.
    """
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
