"""`evener.pin`: pins layers, models, functions and blocks to a device.

    pin(device)(layer)      stored on the layer, which runs there
    with pin(device):       `tf.device`, and the device of the layers that are created inside
    @pin(device)            such a block around every call

Their gradients follow in `evener.pinning.gradients`. Pinned Keras layers have their computation,
variables, losses, optimizer slots and updates on the device:

      layer(x)  -->  with tf.device(...):  build, call  -->  loss, on the device of the predictions
                                             |
                                         variables  -->  slots, updates, on their device

The gradients between the loss and the updates: `evener.pinning.gradients`.

Keras creates the variables of a layer in three ways: at once, while a functional model is built;
in the first call; or, in the first call of a subclassed model, after a symbolic call. The last
ones would be created after `tf.device` has ended, so every variable whose creation is deferred
stores the requested device.

Under a strategy, losses and optimizers are not changed: the strategy places them.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf

from evener._tf_private import tensors
from evener._tf_private.functions import is_traced_function
from evener._tf_private.models import SLOTS_AND_UPDATES, own_variables, sublayers
from evener._tf_private.patches import Patch
from evener.devices.names import device_name
from evener.errors import PlacementError
from evener.pinning import gradients, placement

T = TypeVar("T")


@tf.autograph.experimental.do_not_convert
def pin(device: str | tf.config.LogicalDevice) -> Pin:
    """Pin a block, a function, a Keras layer or a model to a device.

    Pinned work runs on the device, forward and backward. Its variables are placed there, including
    those that are built later, with their optimizer slots and updates. This holds in graphs and in
    eager execution, in Keras's ``fit``, with `tf.GradientTape`, and under `evener.Strategy`.

    - ``with evener.pin("gpu:1"):`` pins the operations inside, and layers that are created inside.
    - ``@evener.pin("gpu:1")`` pins a function, wherever it is called.
    - ``evener.pin("gpu:1")(layer)`` pins a Keras layer or model, and returns it. Its sublayers
      are pinned too, unless they are pinned themselves.

    An inner pin takes precedence over an outer one.

    Args:
        device: ``"gpu:1"``, ``"cpu:0"``, TensorFlow's names (``"/GPU:1"``,
            ``"/device:GPU:1"``), or a `tf.config.LogicalDevice`.

    Returns:
        A context manager and decorator. It is reusable, also in several threads at once.

    Raises:
        PlacementError: PLACE-001 if this is not a device name, PLACE-002 if it names a physical
            device, PLACE-003 if there is no such device.

    Example:
        >>> import evener, keras
        >>> first = evener.pin("cpu:0")(keras.layers.Dense(64, activation="relu"))
        >>> with evener.pin("cpu:0"):
        ...     second = keras.layers.Dense(4)
        >>> model = keras.Sequential([keras.Input((8,)), first, second])
        >>> first.kernel.value.device
        '/job:localhost/replica:0/task:0/device:CPU:0'
    """
    gradients.install()
    _install()
    return Pin(placement.tf_name(device))


class Pin:
    """Pins work to one device. Created by `pin`.

    Args:
        tf_device: TensorFlow's name of the device.
    """

    def __init__(self, tf_device: str) -> None:
        self._device = tf_device

    @property
    def device(self) -> str:
        """The device, such as ``"gpu:1"``."""
        return device_name(self._device)

    def __repr__(self) -> str:
        return f"evener.pin({self.device!r})"

    def __enter__(self) -> Pin:
        stack = contextlib.ExitStack()
        stack.enter_context(placement.on_device(self._device))
        placement.this_thread.pinned_blocks.append((self._device, stack))
        return self

    def __exit__(self, *exception: Any) -> None:
        device, stack = placement.this_thread.pinned_blocks.pop()
        stack.__exit__(*exception)
        if device != self._device:
            raise PlacementError(
                "PLACE-010",
                f"A block pinned to {self.device} ended before the inner block pinned to "
                f"{device_name(device)}.",
                why="Pinned blocks of a thread must be nested; operations run on the device of the "
                "innermost one. asyncio tasks, and generators suspended inside a block, interleave "
                "their blocks.",
                fix="Do not use `await` or `yield` inside of a pinned block.",
            )

    def __call__(self, what: T) -> T:
        """Pin a function, a Keras layer or a model."""
        if isinstance(what, keras.Layer):
            _pin_layer(what, self._device)
            return what
        function: Any = what
        is_function = (
            inspect.isroutine(function)
            or isinstance(function, functools.partial)
            or is_traced_function(function)
        )
        if not is_function or _runs_later(function):
            raise _not_pinnable(function)

        def pinned(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        # The attributes of a `tf.function` must not be copied to another function.
        named: Any = functools.update_wrapper(pinned, function, updated=())
        return named


def _runs_later(what: Any) -> bool:
    """Return whether the body of a function runs after its call returned, outside of the pin."""
    return (
        inspect.isgeneratorfunction(what)
        or inspect.iscoroutinefunction(what)
        or inspect.isasyncgenfunction(what)
    )


def _not_pinnable(what: Any) -> PlacementError:
    name = f"a {type(what).__name__}"
    why = "Only Keras layers, models, functions and blocks can be pinned."
    fix = "Pin a function that calls it."
    if isinstance(what, type):
        name = f"the class {what.__name__}"
        fix = f"Pin an instance of it: evener.pin(device)({what.__name__}(...))."
    elif _runs_later(what):
        name = f"{getattr(what, '__qualname__', 'a function')!r}, a generator or a coroutine,"
        why = "Its body runs after the call has returned, outside of the pin."
        fix = "Pin a block inside it, without yield or await: with evener.pin(device): ..."
    elif isinstance(what, keras.optimizers.Optimizer):
        why = "Its slots and updates are placed on the devices of the variables it trains."
        fix = "Pin the layers of these variables."
    elif isinstance(what, tf.Variable | tf.Tensor | keras.Variable):
        why = "It is already placed on a device."
        fix = "Create it inside `with evener.pin(device):`."
    return PlacementError("PLACE-004", f"{name} cannot be pinned.", why=why, fix=fix)


# Pinned Keras layers.

_PINNED = Patch(
    "pinned layers",
    "keras:Operation.__call__",
    "keras:Layer.__call__",
    "keras:Layer.add_weight",
    "keras:Model.compute_loss",
    "keras:Model.compute_metrics",
    why="A pinned layer computes, and makes its weights, on its device, those outside of a call "
    "too, such as LoRA's; losses are computed on the device of the predictions. Keras has no hooks "
    "for it.",
    if_it_changes="Pinned layers compute on the first device, and predictions are copied there.",
)
_MADE = Patch(
    "layers in a pinned block",
    "keras:Operation.__init__",
    "keras:Layer.__init__",
    why="A layer that is made in ``with evener.pin(...)`` is pinned. Keras has no hook for it.",
    if_it_changes="Layers in such a block are not pinned.",
)
_DEVICE = "_evener_device"


def _install() -> None:
    """Let Keras run layers where they are pinned, and what trains them. Safe to call again."""
    _PINNED.apply_each(
        {
            "__call__": _call,
            "add_weight": _add_weight,
            "compute_loss": _compute_loss,
            "compute_metrics": _compute_loss,
        }
    )
    _MADE.apply(_init)
    tensors.keep_devices_of_waiting_variables()
    SLOTS_AND_UPDATES.apply_each(
        {
            "add_variable_from_reference": _add_slot,
            "apply": _apply_updates,
            "_all_reduce_sum_gradients": _sum_over_replicas,
        }
    )


# Layers. The names of their arguments are the user's, so ours are positional.


def _pin_layer(layer: keras.Layer, device: str) -> None:
    """Pin a layer, and all its sublayers that are not pinned themselves.

    A `tf.Variable` cannot change its device, so a variable that exists gets a new one with the same
    value. That is safe only while nothing else refers to the old one: a traced function would go on
    training it, and an optimizer would not know the new one.
    """
    built = [v for v in _variables(layer) if not tensors.waits_for(v, device)]
    if any(isinstance(v.value, tf.distribute.DistributedValues) for v in built):
        raise PlacementError(
            "PLACE-009",
            f"The layer {layer.name!r} has variables on several devices.",
            why="A strategy such as MirroredStrategy keeps a copy of each variable for every "
            "replica, and a pinned layer has a single one.",
            fix="Create the model under evener.Strategy, or remove the pin.",
        )
    elsewhere = [v for v in built if device_name(v.value.device) != device_name(device)]
    user = _find_user(elsewhere) if elsewhere else ""
    if user:
        raise PlacementError(
            "PLACE-005",
            f"The layer {layer.name!r} has variables on {device_name(elsewhere[0].value.device)}, "
            f"and {user}.",
            why="A tf.Variable cannot change its device. A new variable would replace it, and its "
            "current user would keep the old one.",
            fix="Pin layers before the model is trained, called in a tf.function, or passed to an "
            "optimizer; or create the model again, pin it, and copy the weights: "
            "new.set_weights(old.get_weights()).",
        )
    for variable in elsewhere:
        with tf.device(device):
            old = tensors.renew_variable(variable)
        registry = getattr(getattr(old, "_distribute_strategy", None), "owner_registry", None)
        if registry is not None:
            registry.forget(old)
    _set_device(layer, device)


def _variables(layer: keras.Layer) -> list[Any]:
    """Return the variables of a layer, and of its sublayers that are not pinned themselves."""
    variables = own_variables(layer)
    for sublayer in sublayers(layer):
        if _DEVICE not in vars(sublayer):
            variables += _variables(sublayer)
    return variables


def _find_user(variables: Sequence[Any]) -> str:
    """Return what uses these variables, as the end of a sentence, or an empty string."""
    wanted = {id(v) for v in variables}
    # The graphs in which Keras inferred shapes are garbage, in reference cycles.
    gc.collect()
    for thing in gc.get_objects():
        if issubclass(type(thing), keras.optimizers.Optimizer) and thing.built:
            if any(id(v) in wanted for v in thing._trainable_variables):
                return f"the optimizer {thing.name!r} has slots for them"
    for variable in variables:
        value = variable.value
        internal = {id(value), id(vars(value))}
        for referrer in gc.get_referrers(value.handle):
            kind = type(referrer).__name__
            if id(referrer) not in internal and kind != "frame" and "Deleter" not in kind:
                return f"{variable.path!r} is used in a traced function or by an open tape"
    return ""


def _set_device(layer: Any, device: str) -> None:
    # Keras's attribute tracking is bypassed: some layers refuse attributes once they are built.
    vars(layer)[_DEVICE] = device
    # XLA compiles for a single device: `jit_compile="auto"` must not enable it.
    vars(layer)["supports_jit"] = False


def _call(original: Callable[..., Any], layer: Any, /, *args: Any, **kwargs: Any) -> Any:
    with placement.on_device(vars(layer).get(_DEVICE, "")):
        return original(layer, *args, **kwargs)


def _init(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if placement.this_thread.pinned_blocks:
            _set_device(self, placement.this_thread.pinned_blocks[-1][0])

    # Keras derives a layer's config from this signature.
    vars(init)["__signature__"] = inspect.signature(original)
    return init


def _add_weight(original: Callable[..., Any], layer: Any, /, *args: Any, **kwargs: Any) -> Any:
    requested = tensors.current_device()
    with placement.on_device("" if requested else vars(layer).get(_DEVICE, "")):
        return original(layer, *args, **kwargs)


# Losses and metrics. Otherwise the predictions of a pinned layer would be copied to the first
# device, and their gradient back. The targets are copied instead, which are at most as large.


def _compute_loss(
    original: Callable[..., Any],
    model: Any,
    x: Any = None,
    y: Any = None,
    y_pred: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    # The order of arguments is that of Keras's documentation.
    predictions = tf.nest.flatten(y_pred)
    devices: set[str] = set()
    if not tf.distribute.has_strategy() and all(isinstance(p, tf.Tensor) for p in predictions):
        devices = {placement.device_of_tensor(prediction) for prediction in predictions}
    common_device = devices.pop() if len(devices) == 1 else ""
    with placement.device_scope(common_device):
        return original(model, x, y, y_pred, *args, **kwargs)


# Optimizers: slots, sums, clipping, averages and updates.


def _add_slot(
    original: Callable[..., Any], optimizer: Any, reference_variable: Any, *args: Any, **kwargs: Any
) -> Any:
    # Some optimizers pass the variable by this name.
    if tf.distribute.has_strategy():
        return original(optimizer, reference_variable, *args, **kwargs)
    is_keras = isinstance(reference_variable, keras.Variable)
    variable = reference_variable.value if is_keras else reference_variable
    with tf.device(variable.device):
        return original(optimizer, reference_variable, *args, **kwargs)


def _sum_over_replicas(original: Callable[..., Any], optimizer: Any, grads_and_vars: Any) -> Any:
    if tf.distribute.has_strategy():
        return original(optimizer, grads_and_vars)
    return list(grads_and_vars)


def _apply_updates(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if tf.distribute.has_strategy() or placement.is_tracing_for_xla():
        return original(*args, **kwargs)
    with placement.colocate_with_largest_input():
        return original(*args, **kwargs)
