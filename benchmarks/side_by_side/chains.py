"""Models that are chains of blocks of the same cost, which can be cut into stages.

Every layer's name tells its place: ``begin_*``, ``block_<number>_*`` or ``end_*``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A model of blocks, one after the other.

    Attributes:
        num_blocks: Number of blocks.
        inputs: Shape of a sample.
        between: Shape of what one block gives the next.
        block: Adds the layers of a block, whose number is given, to a tensor.
        begin: Adds what stands before the first block, if there is anything.
        end: Adds what stands behind the last, if there is anything.
        dtype: Type of the samples.
    """

    num_blocks: int
    inputs: tuple[int, ...]
    between: tuple[int, ...]
    block: Callable[[Any, int], Any]
    begin: Callable[[Any], Any] | None = None
    end: Callable[[Any], Any] | None = None
    dtype: str = "float32"

    def build(self) -> Any:
        """Return the whole model."""
        return self.part(0, 1)

    def part(self, number: int, num_parts: int) -> Any:
        """Return one of several parts of the same number of blocks, as a model."""
        import keras

        is_first, is_last = number == 0, number == num_parts - 1
        given = keras.Input(
            self.inputs if is_first else self.between,
            dtype=self.dtype if is_first else "float32",
        )
        x = self.begin(given) if is_first and self.begin else given
        for block in self._blocks(number, num_parts):
            x = self.block(x, block)
        return keras.Model(given, self.end(x) if is_last and self.end else x)

    def layers(self, number: int, num_parts: int) -> tuple[str, ...]:
        """Return patterns of the names of the layers of a part."""
        patterns = [f"block_{block}_*" for block in self._blocks(number, num_parts)]
        if number == 0 and self.begin:
            patterns.insert(0, "begin_*")
        if number == num_parts - 1 and self.end:
            patterns.append("end_*")
        return tuple(patterns)

    def _blocks(self, number: int, num_parts: int) -> range:
        if self.num_blocks % num_parts:
            raise ValueError(f"{self.num_blocks} blocks cannot be cut into {num_parts} like parts")
        each = self.num_blocks // num_parts
        return range(number * each, (number + 1) * each)


def mlp(*, num_blocks: int, width: int, num_classes: int | None, use_bias: bool = True) -> Chain:
    """Return a stack of Dense layers, with another one as its head where classes are given."""

    def block(x: Any, number: int) -> Any:
        import keras

        name = f"block_{number}_dense"
        return keras.layers.Dense(width, activation="relu", use_bias=use_bias, name=name)(x)

    def end(x: Any) -> Any:
        import keras

        return keras.layers.Dense(num_classes, name="end_dense")(x)

    return Chain(
        num_blocks=num_blocks,
        inputs=(width,),
        between=(width,),
        block=block,
        end=None if num_classes is None else end,
    )


def transformer(
    *, num_blocks: int, width: int, num_heads: int, length: int, vocabulary: int
) -> Chain:
    """Return a language model with causal attention."""

    def begin(tokens: Any) -> Any:
        import keras

        layers = keras.layers
        x = layers.Embedding(vocabulary, width, name="begin_embedding")(tokens)
        # Positions: a bias per place and channel, because this has a gradient of its own.
        positions = layers.EinsumDense(
            "blw,lw->blw", output_shape=(length, width), name="begin_positions"
        )
        return positions(x)

    def end(x: Any) -> Any:
        import keras

        layers = keras.layers
        return layers.Dense(vocabulary, name="end_dense")(
            layers.LayerNormalization(name="end_norm")(x)
        )

    return Chain(
        num_blocks=num_blocks,
        inputs=(length,),
        between=(length, width),
        begin=begin,
        block=lambda x, number: transformer_block(x, number, width=width, num_heads=num_heads),
        end=end,
        dtype="int32",
    )


def transformer_block(x: Any, number: int, *, width: int, num_heads: int) -> Any:
    """Return a tensor after attention and a feed-forward layer, each with a way around it."""
    import keras

    layers = keras.layers
    name = f"block_{number}"
    seen = layers.LayerNormalization(name=f"{name}_norm")(x)
    attention = layers.MultiHeadAttention(num_heads, width // num_heads, name=f"{name}_attention")
    x = layers.Add(name=f"{name}_attended")([x, attention(seen, seen, use_causal_mask=True)])
    inner = layers.LayerNormalization(name=f"{name}_inner_norm")(x)
    inner = layers.Dense(4 * width, activation="gelu", name=f"{name}_inner")(inner)
    inner = layers.Dense(width, name=f"{name}_outer")(inner)
    return layers.Add(name=f"{name}_added")([x, inner])


def feed_forward(*, num_blocks: int, width: int) -> Chain:
    """Return a stack of layers of two Dense layers each, the inner one four times as wide."""

    def block(x: Any, number: int) -> Any:
        return _feed_forward_layer(width, f"block_{number}_feed_forward")(x)

    return Chain(num_blocks=num_blocks, inputs=(width,), between=(width,), block=block)


def _feed_forward_layer(width: int, name: str) -> Any:
    import keras

    class FeedForward(keras.layers.Layer):
        """Dense, gelu, Dense."""

        def __init__(self) -> None:
            super().__init__(name=name)
            self.inner = keras.layers.Dense(4 * width, activation="gelu", name="inner")
            self.outer = keras.layers.Dense(width, name="outer")

        def build(self, shape: Any) -> None:
            self.inner.build(shape)
            self.outer.build((*shape[:-1], 4 * width))

        def call(self, x: Any) -> Any:
            return self.outer(self.inner(x))

    return FeedForward()


def plan_of(
    chain: Chain,
    devices: list[str],
    *,
    num_micro_batches: int,
    in_flight: int,
    schedule: Any = "1f1b",
    recompute: tuple[str, ...] = (),
    owners: Mapping[str, str] | None = None,
) -> Any:
    """Return evener's plan of one replica with a stage for every device that is named."""
    from evener.plan import (
        OwnerRule,
        Plan,
        PlanDevice,
        Replica,
        Stage,
    )

    rules = [OwnerRule(pattern=pattern, device=to) for pattern, to in (owners or {}).items()]
    return Plan(
        devices=tuple(PlanDevice.named(name) for name in dict.fromkeys(devices)),
        replicas=(
            Replica(
                share=1,
                num_micro_batches=num_micro_batches,
                in_flight=in_flight,
                schedule=schedule,
                stages=tuple(
                    Stage(device=name, layers=chain.layers(k, len(devices)))
                    for k, name in enumerate(devices)
                ),
            ),
        ),
        recompute=recompute,
        owners=tuple(rules) or "sharded",
    )
