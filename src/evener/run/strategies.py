"""Strategies, models and variables that a script makes belong to the strategy of the run.

The script does not run inside ``strategy.scope()``: a scope holds in one thread, and until
``keras.utils.clear_session``. Instead, a new variable gets an owner and a new model gets the
strategy, as they would in the scope. Calls that no script can mean end it at their line::

    ``tf.device`` with a name of hardware        RUN-008    call
    layers made anew in every call               RUN-009    weights that no layer holds

TensorFlow stops some of these too, but in words of its own and not always at the line.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

import evener
from evener._tf_private.functions import stack
from evener._tf_private.models import TRAINER_INIT, all_layers
from evener._tf_private.patches import Patch
from evener._tf_private.tensors import around_new_variables
from evener.base.user_code import is_own
from evener.errors import RunError
from evener.run.replace import public_targets, replace_with
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


def _targets(*names: str) -> Iterator[str]:
    for folder in ("distribute", "distribute.experimental"):
        for name in names:
            yield from public_targets(f"{folder}.{name}")


_MADE = Patch(
    "strategies that scripts make",
    *_targets(*REPLACED),
    "evener:Strategy",
    why="A script that makes a strategy trains under the one of the run.",
    if_it_changes="Such scripts train under another strategy than that of the run.",
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


def replace_strategies(strategy: Strategy, notes: Notes) -> None:
    named = f"evener.Strategy on {', '.join(strategy.plan.device_names)}"

    def give_class(original: type, name: str) -> Any:
        def give(shown: str) -> Strategy:
            if name == "MultiWorkerMirroredStrategy" and group_of_process() is None:
                _refuse_several_workers(name)
            is_central = name == "CentralStorageStrategy"
            how = " (its variables are owned by all devices, not kept in one place)"
            notes.add(f"{shown} -> {named}{how if is_central else ''}", user_line())
            return strategy

        members = {
            "_evener_instead": give,
            "__doc__": original.__doc__,
            "__module__": original.__module__,
            "__qualname__": name,
        }
        # One of the originals has a metaclass of its own.
        kind = type("_InPlace", tuple(dict.fromkeys((_InPlace, type(original)))), {})
        return kind(name, (original,), members)

    def note_class(original: type, name: str) -> type:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            why = "evener has no part in what is trained under it"
            notes.add(f"{name} is left alone: {why}", user_line())
            original.__init__(self, *args, **kwargs)

        members = {"__init__": __init__, "__module__": original.__module__}
        return type(original)(original.__name__, (original,), members)

    def get_strategy(original: Callable[[], Any]) -> Any:
        # The frame behind that of the replacement. Keras asks too, and gets what it got before.
        asker = sys._getframe(2).f_code.co_filename
        if not is_own(asker) or tf.distribute.has_strategy():
            return original()
        notes.add(f"tf.distribute.get_strategy() -> {named}", user_line())
        return strategy

    _MADE.apply_by_name(give_class)
    _LEFT.apply_by_name(note_class)
    _CURRENT.apply(replace_with(get_strategy))
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
        # As somebody may have written the call.
        written = ", ".join([*map(repr, args), *(f"{key}={kwargs[key]!r}" for key in kwargs)])
        return instead(f"{cls.__name__}({written if len(written) <= 60 else '...'})")

    def __instancecheck__(cls, instance: Any) -> bool:
        if "_evener_instead" not in vars(cls):
            return super().__instancecheck__(instance)
        return isinstance(instance, (Strategy, cls.__mro__[1]))


def _refuse_several_workers(name: str) -> None:
    config = os.environ.get("TF_CONFIG", "").strip()
    try:
        cluster = json.loads(config)["cluster"]
        num_workers = sum(len(cluster.get(kind, ())) for kind in ("chief", "worker"))
    except (ValueError, LookupError, TypeError, AttributeError):
        # Not a cluster: TensorFlow takes it for one worker as well.
        return
    if num_workers > 1:
        raise RunError(
            "RUN-005",
            f"The script makes a {name} for {num_workers} workers.",
            why="The script has set TF_CONFIG itself, when this process had already started as "
            "the only worker.",
            fix="Set TF_CONFIG before evener run starts, or start the workers with evener launch.",
        )


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
    _MODELS.apply(replace_with(_make_in_scope(strategy, notes)))


def _make_in_scope(strategy: Strategy, notes: Notes) -> Callable[..., Any]:
    """Return what is called instead of the ``__init__`` of a model or a trainer."""
    is_reported = False

    def make(original: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_reported
        if tf.distribute.has_strategy():
            return original(model, *args, **kwargs)
        if not is_reported:
            is_reported = True
            devices = ", ".join(strategy.plan.device_names)
            notes.add(f"this model trains on {devices}", user_line())
        with strategy.scope():
            return original(model, *args, **kwargs)

    return make


_MODULE = "tf_keras"
_KERAS_2 = Patch(
    "models, weights, optimizers, slots and reductions of Keras 2",
    f"{_MODULE}:Model.__init__",
    f"{_MODULE}:layers.Layer.add_weight",
    f"{_MODULE}:optimizers.Optimizer.__init__",
    f"{_MODULE}:optimizers.legacy.Optimizer.add_slot",
    f"{_MODULE}:losses.Loss._get_reduction",
    why="A model belongs to the strategy in whose scope it is made, and scripts have no scope. A "
    "layer may be built before its model is made, and Keras 2 refuses to compile a model with "
    "weights from outside of the scope. An optimizer changes averages of weights by the strategy "
    "in whose scope it is made, and an older one makes a slot only in that scope. Under a strategy "
    "a loss refuses the mean over the batch, since a replica would divide by the samples of its "
    "own. A strategy of evener has one replica, which has the whole batch.",
    if_it_changes="Models of Keras 2 of unchanged scripts train on one device, or end with errors "
    "of Keras 2 that name the scope.",
)


def attach_legacy_models(strategy: Strategy, notes: Notes) -> None:
    """Let new models of ``tf_keras`` belong to a strategy, once the script has imported it."""
    make_model = _make_in_scope(strategy, notes)

    def in_scope(original: Callable[..., Any], part: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(part, sys.modules[_MODULE].Model):
            return make_model(original, part, *args, **kwargs)
        if tf.distribute.has_strategy():
            return original(part, *args, **kwargs)
        with strategy.scope():
            return original(part, *args, **kwargs)

    def reduce(original: Callable[..., Any], loss: Any) -> Any:
        if isinstance(tf.distribute.get_strategy(), Strategy):
            loss._allow_sum_over_batch_size = True
        return original(loss)

    def wrap(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        return replace_with(reduce if name == "_get_reduction" else in_scope)(original)

    # What a script makes by `tf.Variable` has no scope, and Keras 2 refuses to compile with it.
    strategy.extended.outside = tf.distribute.get_strategy()
    Loading((_MODULE,), lambda: _KERAS_2.apply_by_name(wrap)).watch()


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
    "layers that are made in calls, and their weights",
    "keras:Layer.__init__",
    "keras:Layer.add_weight",
    why="A layer that is made in each call trains nothing. Keras does not notice it.",
    if_it_changes="RUN-009 is not raised.",
)


def refuse_mistakes() -> None:
    """End the script at calls that no script can mean: RUN-008, RUN-009."""
    _DEVICE.apply(replace_with(_refuse_hardware))
    LayerRef = weakref.ref[keras.Layer]
    # For each layer that was made while another was called: that one, and the line.
    made_in_calls = weakref.WeakKeyDictionary[keras.Layer, tuple[LayerRef, UserLine]]()
    # For each layer that is called: the lines in it that have made a layer with weights.
    first = weakref.WeakKeyDictionary[keras.Layer, dict[UserLine, LayerRef]]()

    def make(original: Callable[..., None], layer: Any, /, *args: Any, **kwargs: Any) -> None:
        outer = _layer_being_called()
        if outer is not None:
            # The frames of the call.
            frames = itertools.takewhile(
                lambda frame: not frame[0].endswith(_LAYER_FILE), reversed(stack())
            )
            lines = [UserLine(file, n) for file, n in frames if is_own(file)]
            if lines:
                made_in_calls[layer] = weakref.ref(outer), lines[-1]
        original(layer, *args, **kwargs)

    def add_weight(original: Callable[..., Any], layer: Any, /, *args: Any, **kwargs: Any) -> Any:
        made, line = made_in_calls.get(layer, (None, None))
        outer: Any = None if made is None else made()
        if line and outer is not None and not any(inner is layer for inner in all_layers(outer)):
            before = first.setdefault(outer, {}).setdefault(line, weakref.ref(layer))
            if before() is not layer:
                kind = type(layer).__name__
                error = RunError(
                    "RUN-009",
                    f"{line}: {type(outer).__name__} makes a new {kind} every time it is called.",
                    why="Each of them has weights of its own, drawn anew, which belong to no "
                    "model: they are never trained, and not saved.",
                    fix=f"make it once, in __init__: self.layer = keras.layers.{kind}(...); "
                    "and call self.layer(...) here.",
                )
                raise _at(line, error)
        return original(layer, *args, **kwargs)

    _LAYERS.apply_each({"__init__": make, "add_weight": add_weight}, by=replace_with)


def _refuse_hardware(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    given = next(iter([*args, *kwargs.values()]), None)
    name = getattr(given, "name", given)
    if isinstance(name, str) and name.lstrip("/").startswith(_HARDWARE):
        file, number = next((each for each in reversed(stack()) if is_own(each[0])), ("", 0))
        if file:
            line = UserLine(file, number)
            logical = "/" + name.lstrip("/").removeprefix(_HARDWARE)
            error = RunError(
                "RUN-008",
                f"{line}: tf.device({name!r}) names a piece of hardware.",
                why="tf.config.list_physical_devices gives names for tf.config alone; tf.device "
                "takes those of logical devices, into which hardware may be cut.",
                fix=f"write tf.device({logical!r}), or take the names from "
                "tf.config.list_logical_devices. To use all devices, leave tf.device out and call "
                "the step by strategy.run.",
            )
            raise _at(line, error)
    return original(*args, **kwargs)


def _layer_being_called() -> keras.Layer | None:
    """Return the outermost layer in whose call, and not in a ``build`` in it, this happens."""
    outer = None
    for frame in callers():
        name, owner = frame.f_code.co_name, frame.f_locals.get("self")
        if name == "build" and outer is None and isinstance(owner, keras.Layer):
            return None
        if name == "__call__" and frame.f_globals.get("__name__") == _LAYER:
            outer = owner or outer
    return outer


def _at(line: UserLine, error: RunError) -> RunError:
    error.add_note(f'  File "{line.path}", line {line.number}')
    # Else Keras, in the call of a layer, raises an error of its own in place of it.
    vars(error)["_keras_call_info_injected"] = True
    return error
