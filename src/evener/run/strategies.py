"""What a script makes belongs to the strategy of the run: strategies, models, variables.

The script does not run inside ``strategy.scope()``: a scope holds in one thread, and until
``keras.utils.clear_session``. Instead, a new variable gets an owner and a new model gets the
strategy, as they would in the scope. Calls that no script can mean end it at their line::

    ``tf.device`` with a name of hardware        RUN-008    call
    layers made anew in every call               RUN-009    weights that no layer holds

TensorFlow stops some of these too, but in words of its own and not always at the line.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, NamedTuple

import keras
import tensorflow as tf

import evener
from evener._tf_private.functions import stack
from evener._tf_private.models import TRAINER_INIT, all_layers
from evener._tf_private.patches import Patch
from evener._tf_private.tensors import around_new_variables
from evener.base.user_code import is_own
from evener.errors import RunError
from evener.run.replace import instead_of
from evener.run.script import Loading, Notes, UserLine, callers, user_line
from evener.strategy import Strategy
from evener.workers.process import group_of_process

REPLACED = (
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "CentralStorageStrategy",
)
LEFT_ALONE = ("ParameterServerStrategy", "TPUStrategy")

_LONGEST_ARGUMENTS = 60


def _targets(*names: str) -> Iterator[str]:
    """Yield the names in every public module that has them, as targets of a patch."""
    for api in ("", "compat.v1.", "compat.v2."):
        for path in (f"{api}distribute", f"{api}distribute.experimental"):
            module = functools.reduce(getattr, path.split("."), tf)
            yield from (f"tensorflow:{path}.{name}" for name in names if hasattr(module, name))


_MADE = Patch(
    "strategies that scripts make",
    *_targets(*REPLACED),
    why="A script with a strategy of TensorFlow trains under the one of the run.",
    if_it_changes="Such scripts train under TensorFlow's strategy.",
)
_LEFT = Patch(
    "strategies that are left alone",
    *_targets(*LEFT_ALONE),
    why="evener has no part in what is trained under them, and says so.",
    if_it_changes="It is not said.",
)
_CURRENT = Patch(
    "tf.distribute.get_strategy in scripts",
    *_targets("get_strategy"),
    why="Scripts ask for the strategy outside of scopes too.",
    if_it_changes="Such scripts get TensorFlow's default strategy.",
)
_OWN = Patch(
    "evener.Strategy in scripts",
    "evener:Strategy",
    why="A script that makes a strategy of evener trains under the one of the run.",
    if_it_changes="Such scripts have two strategies.",
)


def replace_strategies(strategy: Strategy, notes: Notes) -> None:
    """Replace the strategies that a script would make, in every public module."""

    def give(name: str, shown: str) -> Strategy:
        if name == "MultiWorkerMirroredStrategy" and group_of_process() is None:
            _refuse_several_workers(name)
        line = user_line()
        notes.add(f"{shown} -> {_named(strategy)}{_differs(name)}", line)
        return strategy

    _MADE.apply_by_name(lambda original, name: _giving(name, original, give))
    _LEFT.apply_by_name(lambda original, name: _noted(name, original, notes))
    _CURRENT.apply(lambda original: _found(original, strategy, notes))
    _OWN.apply_by_name(lambda original, name: _giving(name, original, give))
    own: Any = evener.Strategy
    own.one_per_device = Strategy.one_per_device


class _InPlace(type):
    """The class of classes that give the strategy of the run instead of an instance.

    They stay classes, so that scripts can ask ``isinstance(s, tf.distribute.MirroredStrategy)``.
    A subclass that a script writes has no ``_evener_instead`` of its own and is what it was.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        instead: Callable[[str], Any] | None = vars(cls).get("_evener_instead")
        if instead is None:
            return super().__call__(*args, **kwargs)
        return instead(_shown(cls.__name__, args, kwargs))

    def __instancecheck__(cls, instance: Any) -> bool:
        if "_evener_instead" not in vars(cls):
            return super().__instancecheck__(instance)
        original = cls.__mro__[1]
        return isinstance(instance, (Strategy, original))


def _giving(name: str, original: type, give: Callable[[str, str], Strategy]) -> Any:
    members = {
        "_evener_instead": lambda shown: give(name, shown),
        "__doc__": original.__doc__,
        "__module__": original.__module__,
        "__qualname__": name,
    }
    # One of the originals has a metaclass of its own.
    kind = type("_InPlace", tuple(dict.fromkeys((_InPlace, type(original)))), {})
    return kind(name, (original,), members)


def _noted(name: str, original: type, notes: Notes) -> type:
    """Return a class that is what it was, but says that evener has no part in it."""
    init: Any = original.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        why = "evener has no part in what is trained under it"
        notes.add(f"{name} is left alone: {why}", user_line())
        init(self, *args, **kwargs)

    members = {"__init__": __init__, "__module__": original.__module__}
    return type(original)(original.__name__, (original,), members)


def _found(original: Callable[[], Any], strategy: Strategy, notes: Notes) -> Callable[[], Any]:
    def get_strategy() -> Any:
        """Return the strategy of this context; for the script, evener's where there is none."""
        asker = sys._getframe(1).f_code.co_filename
        # Keras asks too, and must find what was found before.
        if not is_own(asker) or tf.distribute.has_strategy():
            return original()
        notes.add(f"tf.distribute.get_strategy() -> {_named(strategy)}", user_line())
        return strategy

    return get_strategy


def _refuse_several_workers(name: str) -> None:
    config = os.environ.get("TF_CONFIG", "").strip()
    num_workers = _num_workers(config) if config else 0
    if num_workers > 1:
        raise RunError(
            "RUN-005",
            f"The script makes a {name} for {num_workers} workers.",
            why="The script has set TF_CONFIG itself, when this process had already started as "
            "the only worker.",
            fix="Set TF_CONFIG before evener run starts, or start the workers with evener launch.",
        )


def _num_workers(config: str) -> int:
    try:
        cluster = json.loads(config)["cluster"]
        return sum(len(cluster.get(kind, ())) for kind in ("chief", "worker"))
    except (ValueError, LookupError, TypeError, AttributeError):
        # Not a cluster: TensorFlow takes it for one worker as well.
        return 0


def _named(strategy: Strategy) -> str:
    return f"evener.Strategy on {', '.join(strategy.plan.device_names)}"


def _differs(name: str) -> str:
    if name == "CentralStorageStrategy":
        return " (its variables are owned by all devices, not kept in one place)"
    return ""


def _shown(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return a call as somebody may have written it."""
    written = ", ".join([*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())])
    return f"{name}({written if len(written) <= _LONGEST_ARGUMENTS else '...'})"


_MODELS = Patch(
    "models of scripts",
    "keras:Model.__init__",
    # Of models that are no keras.Model, but a layer with a trainer.
    TRAINER_INIT,
    why="A model belongs to the strategy in whose scope it is made, and scripts have no scope.",
    if_it_changes="Models of unchanged scripts train on one device.",
)


def attach_models(strategy: Strategy, notes: Notes) -> None:
    """Let new Keras models and variables belong to a strategy, if no other strategy is active."""

    def create(next_creator: Any, **kwargs: Any) -> tf.Variable:
        return strategy.extended._create_variable(next_creator, **kwargs)

    def owner_scope() -> contextlib.AbstractContextManager[Any]:
        if tf.distribute.has_strategy():
            return contextlib.nullcontext()
        return tf.variable_creator_scope(create)

    around_new_variables(owner_scope)
    _MODELS.apply(lambda original: init_in_scope(original, strategy, notes))


def init_in_scope(
    original: Callable[..., None], strategy: Strategy, notes: Notes
) -> Callable[..., None]:
    """Return a replacement for the ``__init__`` of a model or a trainer."""
    where = f"in an evener scope, on {', '.join(strategy.plan.device_names)}"
    is_reported = False

    @instead_of(original)
    def __init__(self: keras.Model, *args: Any, **kwargs: Any) -> None:
        nonlocal is_reported
        if tf.distribute.has_strategy():
            original(self, *args, **kwargs)
            return
        if not is_reported:
            is_reported = True
            notes.add(f"Keras models are created {where}", user_line())
        with strategy.scope():
            original(self, *args, **kwargs)

    return __init__


_MODULE = "tf_keras"
_LEGACY_KERAS_MODELS = Patch(
    "models of Keras 2",
    f"{_MODULE}:Model.__init__",
    why="A model belongs to the strategy in whose scope it is made, and scripts have no scope.",
    if_it_changes="Models of Keras 2 of unchanged scripts train on one device.",
)
_OPTIMIZERS = Patch(
    "optimizers of Keras 2",
    f"{_MODULE}:optimizers.Optimizer.__init__",
    why="An optimizer changes averages of weights by the strategy in whose scope it is made.",
    if_it_changes="Optimizers with use_ema=True end with an error about nested scopes.",
)
_SLOTS = Patch(
    "slots of older optimizers of Keras 2",
    f"{_MODULE}:optimizers.legacy.Optimizer.add_slot",
    why="Such an optimizer makes a slot only in the scope in which its variable was made.",
    if_it_changes="Eager steps with these optimizers end with an error that names the scope.",
)
_REDUCTIONS = Patch(
    "reductions of Keras 2",
    f"{_MODULE}:losses.Loss._get_reduction",
    why="Under a strategy a loss refuses the mean over the batch, since a replica would divide by "
    "the samples of its own. A strategy of evener has one replica, which has the whole batch.",
    if_it_changes="Loops whose loss is the mean over the batch end with an error of Keras 2.",
)
_WEIGHTS = Patch(
    "weights of Keras 2",
    f"{_MODULE}:layers.Layer.add_weight",
    why="A layer may be built before its model is made, and Keras 2 refuses to compile a model "
    "with weights from outside of the scope.",
    if_it_changes="Models of unchanged scripts end with an error of Keras 2 that names the scope.",
)


def attach_legacy_models(strategy: Strategy, notes: Notes) -> None:
    """Let new models of ``tf_keras`` belong to a strategy, once the script has imported it."""

    def attach() -> None:
        _LEGACY_KERAS_MODELS.apply(lambda original: init_in_scope(original, strategy, notes))
        _OPTIMIZERS.apply(lambda original: _in_scope(original, strategy))
        _WEIGHTS.apply(lambda original: _in_scope(original, strategy))
        _SLOTS.apply(lambda original: _in_scope(original, strategy))
        _REDUCTIONS.apply(lambda original: _over_the_batch(original))

    # What a script makes by `tf.Variable` has no scope, and Keras 2 refuses to compile with it.
    strategy.extended.outside = tf.distribute.get_strategy()
    Loading((_MODULE,), attach).watch()


def _in_scope(original: Callable[..., Any], strategy: Strategy) -> Callable[..., Any]:
    @instead_of(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.distribute.has_strategy():
            return original(self, *args, **kwargs)
        with strategy.scope():
            return original(self, *args, **kwargs)

    return method


def _over_the_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    @instead_of(original)
    def reduction(loss: Any) -> Any:
        if isinstance(tf.distribute.get_strategy(), Strategy):
            loss._allow_sum_over_batch_size = True
        return original(loss)

    return reduction


_HARDWARE = "physical_device:"
_LAYER = "keras.src.layers.layer"
_LAYER_FILE = "/keras/src/layers/layer.py"

_DEVICE = Patch(
    "devices with names of hardware",
    *(f"tensorflow:{api}device" for api in ("", "compat.v1.", "compat.v2.")),
    why="TensorFlow refuses such names in words of its own, and not always at the line.",
    if_it_changes="RUN-008 is not raised.",
)
_LAYERS = Patch(
    "layers that are made in calls",
    "keras:Layer.__init__",
    why="A layer that is made in each call trains nothing. Keras does not notice it.",
    if_it_changes="RUN-009 is not raised.",
)
_MISTAKES_WEIGHTS = Patch(
    "weights of layers that are made in calls",
    "keras:Layer.add_weight",
    why=_LAYERS.why,
    if_it_changes=_LAYERS.if_it_changes,
)


def refuse_mistakes() -> None:
    """Let the mistakes of the table above end the script."""
    _refuse_names_of_hardware()
    _refuse_fresh_layers()


def _refuse_names_of_hardware() -> None:
    _DEVICE.apply(_naming_logical_devices)


def _naming_logical_devices(
    original: Callable[..., AbstractContextManager[Any]],
) -> Callable[..., AbstractContextManager[Any]]:
    @instead_of(original)
    def device(*args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
        given = next(iter([*args, *kwargs.values()]), None)
        name = getattr(given, "name", given)
        if isinstance(name, str) and name.lstrip("/").startswith(_HARDWARE):
            line = next(_user_lines(), None)
            if line is not None:
                raise _name_of_hardware(name, line)
        return original(*args, **kwargs)

    return device


def _name_of_hardware(name: str, line: UserLine) -> RunError:
    logical = "/" + name.lstrip("/").removeprefix(_HARDWARE)
    error = RunError(
        "RUN-008",
        f"{line}: tf.device({name!r}) names a piece of hardware.",
        why="tf.config.list_physical_devices gives names for tf.config alone; tf.device takes "
        "those of logical devices, into which hardware may be cut.",
        fix=f"write tf.device({logical!r}), or take the names from "
        "tf.config.list_logical_devices. To use all devices, leave tf.device out and call the "
        "step by strategy.run.",
    )
    return _at(line, error)


def _refuse_fresh_layers() -> None:
    made_in_calls: weakref.WeakKeyDictionary[keras.Layer, _Made] = weakref.WeakKeyDictionary()
    # For each layer that is called: the lines in it that have made a layer with weights.
    first: weakref.WeakKeyDictionary[keras.Layer, dict[UserLine, weakref.ref[keras.Layer]]]
    first = weakref.WeakKeyDictionary()

    def making_noted(original: Callable[..., None]) -> Callable[..., None]:
        @instead_of(original)
        def __init__(self: keras.Layer, *args: Any, **kwargs: Any) -> None:
            outer = _layer_being_called()
            line = None if outer is None else _line_in_call()
            if outer is not None and line is not None:
                made_in_calls[self] = _Made(weakref.ref(outer), line)
            original(self, *args, **kwargs)

        return __init__

    def weights_refused(original: Callable[..., Any]) -> Callable[..., Any]:
        @instead_of(original)
        def add_weight(self: keras.Layer, *args: Any, **kwargs: Any) -> Any:
            made = made_in_calls.get(self)
            outer = None if made is None else made.outer()
            if made is not None and outer is not None and not _holds(outer, self):
                before = first.setdefault(outer, {}).setdefault(made.line, weakref.ref(self))
                if before() is not self:
                    raise _fresh_layer(self, outer, made.line)
            return original(self, *args, **kwargs)

        return add_weight

    _LAYERS.apply(making_noted)
    _MISTAKES_WEIGHTS.apply(weights_refused)


class _Made(NamedTuple):
    """A layer that was made while another was called."""

    outer: weakref.ref[keras.Layer]
    line: UserLine


def _layer_being_called() -> keras.Layer | None:
    """Return the outermost layer in whose call, and not in a ``build`` in it, this happens."""
    outer = None
    for frame in callers():
        name, module = frame.f_code.co_name, frame.f_globals.get("__name__")
        if name == "build" and outer is None and isinstance(_self_of(frame), keras.Layer):
            return None
        if name == "__call__" and module == _LAYER:
            outer = _self_of(frame) or outer
    return outer


def _self_of(frame: FrameType) -> Any:
    return frame.f_locals.get("self")


def _line_in_call() -> UserLine | None:
    """Return the line of the person's ``call`` from which this happens, or None."""
    line = None
    for file, number in reversed(stack()):
        if file.endswith(_LAYER_FILE):
            break
        if is_own(file):
            line = UserLine(path=file, number=number)
    return line


def _holds(outer: Any, inner: keras.Layer) -> bool:
    return any(layer is inner for layer in all_layers(outer))


def _fresh_layer(layer: keras.Layer, outer: keras.Layer, line: UserLine) -> RunError:
    kind = type(layer).__name__
    error = RunError(
        "RUN-009",
        f"{line}: {type(outer).__name__} makes a new {kind} every time it is called.",
        why="Each of them has weights of its own, drawn anew, which belong to no model: they are "
        "never trained, and not saved.",
        fix=f"make it once, in __init__: self.layer = keras.layers.{kind}(...); and call "
        "self.layer(...) here.",
    )
    return _at(line, error)


def _user_lines() -> Iterator[UserLine]:
    """Yield the person's lines that have led here, innermost first, as they were written."""
    for file, number in reversed(stack()):
        if is_own(file):
            yield UserLine(path=file, number=number)


def _at(line: UserLine, error: RunError) -> RunError:
    error.add_note(f'  File "{line.path}", line {line.number}')
    # Else Keras, in the call of a layer, raises an error of its own in place of it.
    vars(error)["_keras_call_info_injected"] = True
    return error
