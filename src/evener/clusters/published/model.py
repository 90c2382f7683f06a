"""A published model: the costs of its layers, and where its shape is from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evener.profile import ModelCosts

WEIGHT_BYTES = 4
"""Of a parameter: under Keras's mixed precision, variables and their gradients are float32."""

ADAM_BYTES = 8
"""Of a parameter: two float32 moments."""

ACTIVATION_BYTES = 2
"""Of an activation, which is float16 or bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """A model that is known by its shape.

    Mixed precision and Adam are assumed: variables in float32, activations in 16 bits.

    Args:
        costs: Of its layers.
        num_parameters: That are trained.
        num_operations: Of the forward pass of a layer, by kind of layer.
        source: Author, title and year of what the shape is from.
    """

    costs: ModelCosts
    num_parameters: int
    num_operations: Mapping[str, int] = field(hash=False)
    source: str

    @property
    def forward_flops(self) -> float:
        """Floating-point operations of the forward pass of a sample."""
        return sum(layer.forward_flops for layer in self.costs.layers)
