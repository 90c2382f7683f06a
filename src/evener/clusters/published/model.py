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
class Kernel:
    """A kernel of a layer's forward pass, with those of its backward pass.

    Args:
        flops: Floating-point operations of products per sample; 0 for all other kernels.
        bytes: Bytes that it reads and writes per sample.
        backward_bytes: Bytes that its backward pass reads and writes per sample; None for two
            products, which take twice as long as the forward pass.
        fixed_bytes: Bytes that it reads whatever the number of samples: weights.
    """

    flops: float = 0.0
    bytes: float
    backward_bytes: float | None = None
    fixed_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """Published model.

    Mixed precision and Adam are assumed: variables in float32, activations in 16 bits.

    Args:
        costs: Costs of its layers.
        num_parameters: Number of trained parameters.
        num_operations: Number of operations of a layer's forward pass, by kind of layer.
        kernels: Kernels of a layer, by name or kind of layer; what XLA fuses is a single kernel. A
            layer without an entry is one kernel.
        source: Source of the shape: author, title and year.
    """

    costs: ModelCosts
    num_parameters: int
    num_operations: Mapping[str, int] = field(hash=False)
    kernels: Mapping[str, tuple[Kernel, ...]] = field(hash=False)
    source: str

    @property
    def forward_flops(self) -> float:
        """Floating-point operations of the forward pass of a sample."""
        return sum(layer.forward_flops for layer in self.costs.layers)
