"""ResNet-50 by its shape, in the version with strides in the 3 x 3 convolutions (v1.5).

Each convolution is followed by a BatchNormalization, and most of them by a ReLU. The tensors saved
for the backward pass are the result of each convolution, which the normalization reads, and the
input of the next convolution.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evener.clusters.published.model import (
    ACTIVATION_BYTES,
    ADAM_BYTES,
    WEIGHT_BYTES,
    Kernel,
    PublishedModel,
)
from evener.profile import LayerCosts, ModelCosts

_GROUPS = ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7))
"""Number of blocks, width of the 3 x 3 convolution and size of its result, for each group."""

_EXPANSION = 4
_CLASSES = 1000
_IMAGE = 224
_PIXEL_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """Convolution without bias, and the normalization after it.

    Args:
        inputs: Number of input channels.
        outputs: Number of output channels.
        kernel: Side of the kernel.
        size: Side of the result.
        size_before: Side of its input.
    """

    inputs: int
    outputs: int
    kernel: int
    size: int
    size_before: int

    @property
    def parameters(self) -> int:
        """Its kernel, and the scale and offset of the normalization."""
        return self.kernel**2 * self.inputs * self.outputs + 2 * self.outputs

    @property
    def values(self) -> int:
        """Of its result, per sample."""
        return self.size**2 * self.outputs

    @property
    def flops(self) -> int:
        """Two for each product and its addition, per sample."""
        return 2 * self.values * self.kernel**2 * self.inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A residual block.

    Args:
        name: Name of its layer.
        kind: Kind of its layer; empty to take it from the name.
        convolutions: Convolutions of its main path, then that of a shortcut with another shape.
    """

    name: str
    kind: str
    convolutions: tuple[Convolution, ...]


def resnet50() -> PublishedModel:
    """Return ResNet-50 for images of 224 x 224 and 1000 classes.

    >>> resnet50().num_parameters
    25557032
    """
    stem = Convolution(inputs=3, outputs=64, kernel=7, size=112, size_before=_IMAGE)
    pooled = 56**2 * 64
    blocks = tuple(_blocks())
    layers = (
        _layer("stem", (stem,), boundary=pooled, also_kept=pooled, kind="stem"),
        *map(_layer_of_block, blocks),
        _head(),
    )
    costs = ModelCosts(name="resnet-50", layers=layers, input_bytes=_IMAGE**2 * 3 * _PIXEL_BYTES)
    return PublishedModel(
        costs=costs,
        num_parameters=costs.weight_bytes // WEIGHT_BYTES,
        # Each convolution with its normalization and ReLU; in the blocks an addition.
        num_operations={"stem": 4, "first": 12, "block": 10, "head": 4},
        kernels={
            "stem": (*_kernels(stem), _pooling(stem.values, pooled)),
            **{block.name: tuple(_kernels_of_block(block)) for block in blocks},
        },
        source="He et al., Deep Residual Learning for Image Recognition, 2016, table 1; strides as "
        "in torchvision and NVIDIA's ResNet-50 v1.5",
    )


def _blocks() -> Iterator[Block]:
    inputs = 64
    size_before = 56
    for group, (count, width, size) in enumerate(_GROUPS):
        outputs = _EXPANSION * width
        for number in range(count):
            before = size_before if number == 0 else size
            convolutions = (
                Convolution(
                    inputs=inputs, outputs=width, kernel=1, size=before, size_before=before
                ),
                Convolution(inputs=width, outputs=width, kernel=3, size=size, size_before=before),
                Convolution(inputs=width, outputs=outputs, kernel=1, size=size, size_before=size),
            )
            # The shortcut has another shape, too.
            shortcut = Convolution(
                inputs=inputs, outputs=outputs, kernel=1, size=size, size_before=before
            )
            yield Block(
                name=f"group_{group}_block_{number}",
                kind="first" if number == 0 else "",
                convolutions=(*convolutions, shortcut) if number == 0 else convolutions,
            )
            inputs = outputs
        size_before = size


def _layer_of_block(block: Block) -> LayerCosts:
    first, second, third = block.convolutions[:3]
    return _layer(
        block.name,
        block.convolutions,
        boundary=third.values,
        # The results of the first two ReLUs, and of the last one.
        also_kept=first.values + second.values + third.values,
        kind=block.kind,
    )


def _kernels_of_block(block: Block) -> Iterator[Kernel]:
    for convolution in block.convolutions:
        yield from _kernels(convolution)
    # The addition reads the shortcut, in the kernel of the last ReLU; its gradient goes two ways,
    # and those of both ways are added up.
    values = block.convolutions[2].values
    yield Kernel(bytes=ACTIVATION_BYTES * values, backward_bytes=2 * ACTIVATION_BYTES * values)


def _kernels(convolution: Convolution) -> Iterator[Kernel]:
    """Yield the kernels of a convolution and its normalization, with a ReLU fused into it."""
    read = convolution.size_before**2 * convolution.inputs
    yield Kernel(
        flops=convolution.flops,
        bytes=ACTIVATION_BYTES * (read + convolution.values),
        fixed_bytes=WEIGHT_BYTES * convolution.parameters,
    )
    # Forward: a pass for mean and variance, one that reads and writes. Backward: a pass over the
    # input and its gradient for two sums, and one that reads both and writes a gradient.
    one_pass = ACTIVATION_BYTES * convolution.values
    yield Kernel(bytes=3 * one_pass, backward_bytes=5 * one_pass)


def _pooling(before: int, after: int) -> Kernel:
    """Return the pooling, whose backward pass reads gradients and positions, and writes all."""
    one_way = ACTIVATION_BYTES * (before + after)
    return Kernel(bytes=one_way, backward_bytes=one_way + ACTIVATION_BYTES * after)


def _layer(
    name: str, convolutions: Sequence[Convolution], *, boundary: int, also_kept: int, kind: str
) -> LayerCosts:
    parameters = sum(convolution.parameters for convolution in convolutions)
    kept = sum(convolution.values for convolution in convolutions) + also_kept
    return LayerCosts(
        name=name,
        kind=kind,
        weight_bytes=WEIGHT_BYTES * parameters,
        optimizer_bytes=ADAM_BYTES * parameters,
        # The moving mean and variance of each channel.
        state_bytes=WEIGHT_BYTES * 2 * sum(convolution.outputs for convolution in convolutions),
        activation_bytes=ACTIVATION_BYTES * kept,
        boundary_bytes=ACTIVATION_BYTES * boundary,
        # The gradients of the result and of the input of the last convolution.
        workspace_bytes=2
        * ACTIVATION_BYTES
        * max(convolution.values for convolution in convolutions),
        forward_flops=sum(convolution.flops for convolution in convolutions),
    )


def _head() -> LayerCosts:
    channels = _GROUPS[-1][1] * _EXPANSION
    parameters = channels * _CLASSES + _CLASSES
    return LayerCosts(
        name="head",
        kind="head",
        weight_bytes=WEIGHT_BYTES * parameters,
        optimizer_bytes=ADAM_BYTES * parameters,
        activation_bytes=ACTIVATION_BYTES * channels + 4 * _CLASSES,
        workspace_bytes=4 * _CLASSES,
        forward_flops=2 * channels * _CLASSES,
    )
