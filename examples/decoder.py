"""A small transformer in plain Keras, without any code for stages or devices.

A stage holds whole layers: ``embedding``, ``block_0``, ``block_1`` and so on, ``norm``, ``head``.
Each of them creates its inner layers, so the paths of their variables begin with its name, by
which they are assigned to a stage.
"""

from __future__ import annotations

import keras
from keras import layers


class Embedding(layers.Layer):
    """Embeds tokens and their positions.

    Args:
        num_tokens: Size of the vocabulary.
        width: Size of a token's vector.
        context: Number of tokens in a sequence.
        name: Name of the layer.
    """

    def __init__(self, num_tokens: int, width: int, context: int, name: str) -> None:
        super().__init__(name=name)
        # Positions start at zero: the next token depends most on the last tokens.
        spread = keras.initializers.RandomNormal(stddev=0.5)
        self.tokens = layers.Embedding(num_tokens, width, spread, name="tokens")
        self.positions = self.add_weight((context, width), "zeros", name="positions")

    def call(self, tokens: keras.KerasTensor) -> keras.KerasTensor:
        """Return the vectors of tokens: shape (batch, context, width)."""
        return self.tokens(tokens) + self.positions


class Block(layers.Layer):
    """A transformer block: causal self-attention, then a feed-forward network.

    Args:
        width: Size of a token's vector; a multiple of `heads`.
        heads: Number of attention heads.
        name: Name of the layer.
    """

    def __init__(self, width: int, heads: int, name: str) -> None:
        super().__init__(name=name)
        self.norm_1 = layers.LayerNormalization(name="norm_1")
        # No biases: that of a key has a gradient of exactly zero, whose rounding Adam amplifies.
        self.attention = layers.MultiHeadAttention(
            heads, width // heads, use_bias=False, name="attention"
        )
        self.norm_2 = layers.LayerNormalization(name="norm_2")
        self.wide = layers.Dense(4 * width, activation="gelu", name="wide")
        self.narrow = layers.Dense(width, name="narrow")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Return the new vectors of tokens, in the shape of ``x``."""
        normed = self.norm_1(x)
        x = x + self.attention(normed, normed, use_causal_mask=True)
        return x + self.narrow(self.wide(self.norm_2(x)))


def make_decoder(
    num_tokens: int, *, context: int, width: int, blocks: int, heads: int, warm_steps: int
) -> keras.Model:
    """Return the model, compiled; its weights depend on `keras.utils.set_random_seed`.

    Args:
        num_tokens: Size of the vocabulary.
        context: Number of tokens in a sequence.
        width: Size of a token's vector.
        blocks: Number of blocks.
        heads: Number of attention heads in each block.
        warm_steps: Number of steps in which the learning rate rises.
    """
    tokens = keras.Input((context,), dtype="int32", name="tokens")
    x = Embedding(num_tokens, width, context, name="embedding")(tokens)
    for number in range(blocks):
        x = Block(width, heads, name=f"block_{number}")(x)
    x = layers.LayerNormalization(name="norm")(x)
    model = keras.Model(tokens, layers.Dense(num_tokens, name="head")(x), name="decoder")
    rising = keras.optimizers.schedules.PolynomialDecay(1e-4, warm_steps, 1e-3)
    model.compile(
        # With the default epsilon, Adam amplifies rounding errors of gradients that are zero.
        optimizer=keras.optimizers.Adam(rising, epsilon=1e-5),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return model
