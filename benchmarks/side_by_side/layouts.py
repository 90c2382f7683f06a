"""The models and plans whose costs are predicted, and the halves into which the cases fall.

A case is a model under a plan. Its name alone decides its half, so that nobody chooses which
cases the cost model is tuned on::

    sha1("mlp, even shares")   even ──► tuning      looked at while the cost model is worked on
                               odd ───► held out    measured once, when the work is done
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from side_by_side.chains import Chain, mlp, transformer

TUNING, HELD_OUT = "tuning", "held out"
HALVES = (TUNING, HELD_OUT)
NUM_DEVICES = 3
DEVICES = tuple(f"cpu:{number}" for number in range(NUM_DEVICES))

_EVEN_CUT = (("begin_*", "block_[01]_*"), ("block_[23]_*", "end_*"))
_FOUR = (("begin_*", "block_0_*"), ("block_1_*",), ("block_2_*",), ("block_3_*", "end_*"))
_UNEVEN_CUT = (("begin_*", "block_0_*"), ("block_[123]_*", "end_*"))
_LENGTH, _WORDS, _MANY_WORDS = 32, 1000, 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A model and its batches.

    Attributes:
        chain: Four blocks.
        batch_size: Samples of a global batch.
        num_classes: Number of classes of the targets.
        target: Shape of the target of one sample.
        most_input: Whole numbers below this are the samples; 0 for floats.
    """

    chain: Chain
    batch_size: int
    num_classes: int = 10
    target: tuple[int, ...] = ()
    most_input: int = 0

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Return one batch of samples and targets."""
        rng = np.random.default_rng(3)
        shape = (self.batch_size, *self.chain.inputs)
        if self.most_input:
            x = rng.integers(0, self.most_input, shape).astype("int32")
        else:
            x = rng.random(shape, dtype="float32")
        y = rng.integers(0, self.num_classes, (self.batch_size, *self.target))
        return x, y.astype("int32")


def _cnn(*, is_normalized: bool) -> Chain:
    def block(x: Any, number: int) -> Any:
        import keras

        layers, name = keras.layers, f"block_{number}"
        filters = (32, 48, 64, 96)[number]
        x = layers.Conv2D(filters, 3, padding="same", activation="relu", name=f"{name}_conv")(x)
        if is_normalized:
            x = layers.BatchNormalization(name=f"{name}_norm")(x)
        return layers.MaxPooling2D(name=f"{name}_pool")(x)

    def end(x: Any) -> Any:
        import keras

        x = keras.layers.GlobalAveragePooling2D(name="end_average")(x)
        return keras.layers.Dense(10, name="end_dense")(x)

    return Chain(num_blocks=4, inputs=(32, 32, 3), between=(), block=block, end=end)


def _bag_of_words() -> Chain:
    def begin(tokens: Any) -> Any:
        import keras

        x = keras.layers.Embedding(_MANY_WORDS, 64, name="begin_embedding")(tokens)
        return keras.layers.GlobalAveragePooling1D(name="begin_average")(x)

    dense = mlp(num_blocks=4, width=512, num_classes=10)
    return Chain(
        num_blocks=4,
        inputs=(_LENGTH,),
        between=(512,),
        begin=begin,
        block=dense.block,
        end=dense.end,
        dtype="int32",
    )


MODELS = {
    "mlp": Trained(chain=mlp(num_blocks=4, width=1024, num_classes=10), batch_size=512),
    "cnn": Trained(chain=_cnn(is_normalized=False), batch_size=64),
    "cnn_with_batch_norm": Trained(chain=_cnn(is_normalized=True), batch_size=64),
    "transformer": Trained(
        chain=transformer(num_blocks=4, width=128, num_heads=4, length=_LENGTH, vocabulary=_WORDS),
        batch_size=32,
        num_classes=_WORDS,
        target=(_LENGTH,),
        most_input=_WORDS,
    ),
    "embedding": Trained(chain=_bag_of_words(), batch_size=512, most_input=_MANY_WORDS),
}


def _replicas(shares: tuple[int, ...], **more: Any) -> Callable[[Trained], Any]:
    def make(trained: Trained) -> Any:
        from evener.plan import Plan

        del trained
        return Plan.data_parallel(DEVICES[: len(shares)], shares=shares, **more)

    return make


def _stages(
    cut: tuple[tuple[str, ...], ...],
    *,
    num_micro_batches: int = 4,
    in_flight: int = 2,
    recompute: tuple[str, ...] = (),
    whole_share: int = 0,
    schedule: str = "1f1b",
) -> Callable[[Trained], Any]:
    """Return what makes a plan of stages, beside a replica of the whole model if it has a share."""

    def make(trained: Trained) -> Any:
        from evener.plan import (
            Plan,
            PlanDevice,
            Replica,
            Stage,
        )

        # A model that has nothing before its first block must not be asked for it.
        is_there = {"begin_*": trained.chain.begin is not None}
        stages = tuple(
            Stage(device=name, layers=tuple(layer for layer in layers if is_there.get(layer, True)))
            for name, layers in zip(itertools.cycle(DEVICES[:2]), cut, strict=False)
        )
        staged = Replica(
            share=1,
            stages=stages,
            num_micro_batches=num_micro_batches,
            in_flight=in_flight,
            schedule=schedule,
        )
        whole = Replica(share=whole_share, stages=(Stage(device=DEVICES[2]),))
        return Plan(
            devices=tuple(PlanDevice.named(name) for name in DEVICES[: 3 if whole_share else 2]),
            replicas=(staged, whole) if whole_share else (staged,),
            recompute=recompute,
        )

    return make


PLANS: dict[str, Callable[[Trained], Any]] = {
    "one device": _replicas((1,)),
    "accumulation": _replicas((1,), num_micro_batches=4),
    "even shares": _replicas((1, 1)),
    "3:1 shares": _replicas((3, 1)),
    "owners on the host": _replicas((1, 1), owners="central"),
    "owners by rules": _replicas((1, 1), owners={"block_*": "cpu:1", "*": "cpu:0"}),
    "two stages": _stages(_EVEN_CUT),
    "uneven stages": _stages(_UNEVEN_CUT),
    "8 micro-batches": _stages(_EVEN_CUT, num_micro_batches=8),
    "recompute": _stages(_EVEN_CUT, recompute=("block_*",)),
    "some recomputed": _stages(_EVEN_CUT, recompute=("block_0_*",)),
    "stages in turns": _stages(_FOUR, in_flight=4),
    "hybrid": _stages(_EVEN_CUT, whole_share=1),
    "three replicas": _replicas((1, 1, 1)),
}

_SHORT = ("one device", "even shares", "3:1 shares", "accumulation")
_SEARCHED = ("some recomputed", "stages in turns")
PLANS_OF: dict[str, tuple[str, ...]] = {
    "mlp": tuple(PLANS),
    "cnn": (*_SHORT, "owners on the host", "two stages", "8 micro-batches"),
    "cnn_with_batch_norm": ("one device", "even shares"),
    "transformer": (
        *_SHORT,
        "owners by rules",
        "two stages",
        "uneven stages",
        "recompute",
        *_SEARCHED,
    ),
    "embedding": (*_SHORT, "owners on the host", "two stages", "uneven stages"),
}


def case_name(model: str, plan: str) -> str:
    """Return what a case is called."""
    return f"{model}, {plan}"


def half_of(case: str) -> str:
    """Return the half into which a case falls, by its name alone.

    >>> half_of("mlp, even shares") in HALVES
    True
    """
    return HALVES[hashlib.sha1(case.encode()).digest()[0] % 2]
