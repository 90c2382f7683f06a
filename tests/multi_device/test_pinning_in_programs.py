"""Pins in programs as people write them: every optimizer, copies, LoRA, generators, strategies."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import evener
from evener.errors import PlacementError

OPTIMIZERS = ("Adafactor", "Adam", "Ftrl", "Lamb", "Lion", "Muon", "SGD")


@keras.saving.register_keras_serializable(package="pins")
class WithoutInit(layers.Layer):
    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], 2))

    def call(self, x: Any) -> Any:
        return keras.ops.matmul(x, self.kernel)


class WithKeywords(WithoutInit):
    def __init__(self, *, scale: float = 2.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale = scale


def devices_of(variables: Any) -> set[str]:
    return {variable.value.device[-5:] for variable in variables}


def test_layers_are_made_and_copied_as_before() -> None:
    evener.pin("cpu:1")
    assert WithKeywords(scale=3.0).get_config()["scale"] == 3.0
    layer = evener.pin("cpu:1")(WithoutInit(name="own"))
    x = tf.ones([1, 3])
    y = layer(x)
    # Keras makes a bare layer to copy or to save another one.
    copied = copy.deepcopy(layer)
    np.testing.assert_array_equal(copied(x), y)
    assert devices_of(copied.weights) == {"CPU:0"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slots_of_every_optimizer_are_beside_their_variables(name: str) -> None:
    layer = evener.pin("cpu:1")(layers.Dense(2))
    layer.build((None, 3))
    optimizer = getattr(keras.optimizers, name)()
    if name == "SGD":
        optimizer = keras.optimizers.SGD(momentum=0.9, use_ema=True)
    optimizer.build(layer.trainable_variables)
    slots = [v for v in optimizer.variables if v.shape == (3, 2)]
    assert slots
    assert devices_of(slots) == {"CPU:1"}


def test_weights_that_a_pinned_layer_gets_later_are_there_too() -> None:
    layer = evener.pin("cpu:1")(layers.Dense(2))
    layer.build((None, 3))
    layer.enable_lora(2)
    assert devices_of(layer.weights) == {"CPU:1"}
    other = evener.pin("cpu:1")(layers.Dense(2))
    with tf.device("cpu:2"):
        assert other.add_weight(shape=(2,)).value.device[-5:] == "CPU:2"


def test_what_begins_only_when_the_pin_has_ended_is_refused() -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def coroutine() -> None:
        await asyncio.sleep(0)

    async def both() -> AsyncIterator[int]:
        yield 1

    for function in (generator, coroutine, both):
        with pytest.raises(PlacementError, match="PLACE-004") as raised:
            evener.pin("cpu:1")(function)
        assert "a generator or a coroutine" in raised.value.what


def test_blocks_that_are_mixed_up_are_told_and_leave_nothing() -> None:
    def work(device: str) -> Iterator[None]:
        with evener.pin(device):
            yield

    first, second = work("cpu:1"), work("cpu:2")
    next(first)
    next(second)
    for left in (first, second):
        with pytest.raises(PlacementError, match="PLACE-010"):
            next(left)
    assert tf.ones([]).device[-5:] == "CPU:0"
    assert layers.Dense(2).supports_jit


def test_a_mirrored_layer_is_refused() -> None:
    with tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        layer = layers.Dense(2)
        layer.build((None, 3))
    with pytest.raises(PlacementError, match="PLACE-009"):
        evener.pin("cpu:2")(layer)
