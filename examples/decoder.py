"""A small transformer in plain Keras, which knows nothing of stages or devices.

Every part that a stage can hold is a layer of its own: ``embedding``, ``block_0``, ``block_1``
and so on, ``norm``, ``head``. Each part makes its inner layers itself, so that the paths of
their variables begin with its name, by which they find their stage.
"""

from __future__ import annotations

import keras
from keras import layers


class Embedding(layers.Layer):
    """Represents each token, and its place, by numbers.

    Args:
        num_tokens: How many different tokens there are.
        width: Numbers for each token.
        context: How many tokens there are at once.
        name: Of the layer.
    """

    def __init__(self, num_tokens: int, width: int, context: int, name: str) -> None:
        super().__init__(name=name)
        # At first tokens count for more than places: what follows depends most on the last.
        spread = keras.initializers.RandomNormal(stddev=0.5)
        self.tokens = layers.Embedding(num_tokens, width, spread, name="tokens")
        self.places = self.add_weight((context, width), "zeros", name="places")

    def call(self, tokens: keras.KerasTensor) -> keras.KerasTensor:
        """Return the numbers for tokens: shape (batch, context, width)."""
        return self.tokens(tokens) + self.places


class Block(layers.Layer):
    """Lets each token attend to those before it, and gives the result to a small network.

    Args:
        width: Numbers for each token; a multiple of `heads`.
        heads: Of the attention.
        name: Of the layer.
    """

    def __init__(self, width: int, heads: int, name: str) -> None:
        super().__init__(name=name)
        self.norm_1 = layers.LayerNormalization(name="norm_1")
        # Without biases: the exact gradient of a key's is zero, and Adam would follow rounding.
        self.attention = layers.MultiHeadAttention(
            heads, width // heads, use_bias=False, name="attention"
        )
        self.norm_2 = layers.LayerNormalization(name="norm_2")
        self.wide = layers.Dense(4 * width, activation="gelu", name="wide")
        self.narrow = layers.Dense(width, name="narrow")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Return the numbers for tokens, in the shape in which they were given."""
        normed = self.norm_1(x)
        x = x + self.attention(normed, normed, use_causal_mask=True)
        return x + self.narrow(self.wide(self.norm_2(x)))


def make_decoder(
    num_tokens: int, *, context: int, width: int, blocks: int, heads: int, warm_steps: int
) -> keras.Model:
    """Return the model, compiled; `keras.utils.set_random_seed` decides its weights.

    Args:
        num_tokens: How many different tokens there are.
        context: How many tokens it is given at once.
        width: Numbers for each token.
        blocks: How many blocks there are.
        heads: Of each attention.
        warm_steps: Over how many steps the learning rate rises.
    """
    tokens = keras.Input((context,), dtype="int32", name="tokens")
    x = Embedding(num_tokens, width, context, name="embedding")(tokens)
    for number in range(blocks):
        x = Block(width, heads, name=f"block_{number}")(x)
    x = layers.LayerNormalization(name="norm")(x)
    model = keras.Model(tokens, layers.Dense(num_tokens, name="head")(x), name="decoder")
    rising = keras.optimizers.schedules.PolynomialDecay(1e-4, warm_steps, 1e-3)
    model.compile(
        # With the usual epsilon, Adam divides rounding by rounding where a gradient is zero.
        optimizer=keras.optimizers.Adam(rising, epsilon=1e-5),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return model
