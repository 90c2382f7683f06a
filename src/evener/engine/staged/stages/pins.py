"""Pinned layers in a plan with stages: both say where a layer computes, so they must agree."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from evener.engine.ownership import device_name
from evener.engine.staged.stages.assignment import stages_of_calls
from evener.engine.staged.stages.trace import LayerCall
from evener.errors import EngineError
from evener.locality.marks import pinned_to
from evener.plan import Stage


def check_pins(model: keras.Model, calls: Sequence[LayerCall], stages: Sequence[Stage]) -> None:
    """Refuse a layer that is pinned to another device than that of its stage.

    Args:
        model: The model; pinned, all its layers are.
        calls: All calls of layers; the innermost pin counts, as where no plan is.
        stages: The stages of one replica.

    Raises:
        EngineError: ENG-047.
    """
    pins: list[str] = []
    numbers = stages_of_calls(calls, [stage.layers for stage in stages])
    for call, number in zip(calls, numbers, strict=True):
        outer = pinned_to(model) if call.outer is None else pins[call.outer]
        pins.append(pinned_to(call.layer) or outer)
        if number is not None:
            _check(pins[-1], call.path, number, stages)


def check_pin(layer: keras.Layer, path: str, number: int, stages: Sequence[Stage]) -> None:
    """Refuse a layer that is pinned itself to another device than that of its stage.

    Args:
        layer: The layer.
        path: Its path, for the message.
        number: The number of its stage.
        stages: The stages of one replica.

    Raises:
        EngineError: ENG-047.
    """
    _check(pinned_to(layer), path, number, stages)


def _check(pin: str, path: str, number: int, stages: Sequence[Stage]) -> None:
    pinned, device = device_name(pin) if pin else "", stages[number].device
    if pinned in ("", device):
        return
    raise EngineError(
        "ENG-047",
        f"The layer {path!r} is pinned to {pinned}, and its stage {number} is on {device}.",
        why="In a plan with stages, the stage says where a layer computes.",
        fix=f"Leave out the pin, or pin the layer to {device}, or put it into a stage on {pinned}.",
    )
