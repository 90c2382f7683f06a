"""Published model: the costs of its layers, and the source of its shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evener.profile import ModelCosts

WEIGHT_BYTES = 4
"""Bytes per parameter: under Keras's mixed precision, variables and gradients are float32."""

ADAM_BYTES = 8
"""Bytes of optimizer state per parameter: two float32 moments."""

ACTIVATION_BYTES = 2
"""Bytes per activation, which is float16 or bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """Published model.

    Mixed precision and Adam are assumed: variables in float32, activations in 16 bits.

    Args:
        costs: Costs of its layers.
        num_parameters: Number of trained parameters.
        num_operations: Number of operations of a layer's forward pass, by kind of layer.
        source: Source of the shape: author, title and year.
    """

    costs: ModelCosts
    num_parameters: int
    num_operations: Mapping[str, int] = field(hash=False)
    source: str

    @property
    def forward_flops(self) -> float:
        """Floating-point operations of the forward pass of a sample."""
        return sum(layer.forward_flops for layer in self.costs.layers)
