"""Errors for calls that no script can mean, at the line of the call.

    ``tf.device`` with a name of hardware        RUN-008    call
    layers made anew in every call               RUN-009    weights that no layer holds

TensorFlow stops some of these too, but in words of its own and not always at the line.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, NamedTuple

import keras

from evener._tf_private.layers import all_layers
from evener._tf_private.patches import Patch
from evener._tf_private.source_lines import stack
from evener.errors import RunError
from evener.own_code import is_own
from evener.run.replace import instead_of
from evener.run.user_line import UserLine, callers

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
_WEIGHTS = Patch(
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
    _WEIGHTS.apply(weights_refused)


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
    """Return an error that is shown with the line of the mistake."""
    error.add_note(f'  File "{line.path}", line {line.number}')
    # Else Keras, in the call of a layer, raises an error of its own in place of it.
    vars(error)["_keras_call_info_injected"] = True
    return error
