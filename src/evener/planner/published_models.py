"""Published models by their shapes: ResNet-50, BERT-large and the models of GPT-3."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from evener.errors import ProfileError, did_you_mean
from evener.plan.profile import LayerCosts, ModelCosts

# Published model: the costs of its layers, and the source of its shape.

WEIGHT_BYTES = 4
"""Bytes per parameter: under Keras's mixed precision, variables and gradients are float32."""

ADAM_BYTES = 8
"""Bytes of optimizer state per parameter: two float32 moments."""

ACTIVATION_BYTES = 2
"""Bytes per activation, which is float16 or bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel of a layer's forward pass, with those of its backward pass."""

    flops: float = 0.0  # Floating-point operations of products per sample; 0 for all other kernels
    bytes: float  # Bytes that it reads and writes per sample
    # Bytes that its backward pass reads and writes per sample; None for two products, which take
    # twice as long as the forward pass
    backward_bytes: float | None = None
    fixed_bytes: float = 0.0  # Bytes that it reads whatever the number of samples: weights


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


# ResNet-50 by its shape, in the version with strides in the 3 x 3 convolutions (v1.5).
#
# Each convolution is followed by a BatchNormalization, and most of them by a ReLU. The tensors
# saved
# for the backward pass are the result of each convolution, which the normalization reads, and the
# input of the next convolution.

_GROUPS = ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7))
"""Number of blocks, width of the 3 x 3 convolution and size of its result, for each group."""

_EXPANSION = 4
_CLASSES = 1000
_IMAGE = 224
_PIXEL_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """Convolution without bias, and the normalization after it."""

    inputs: int  # Number of input channels
    outputs: int  # Number of output channels
    kernel: int  # Side of the kernel
    size: int  # Side of the result
    size_before: int  # Side of its input

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
    """A residual block."""

    name: str  # Name of its layer
    kind: str  # Kind of its layer; empty to take it from the name
    # Convolutions of its main path, then that of a shortcut with another shape
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


# BERT-large and the models of GPT-3, by their shapes.
#
# Activations, in bytes per sample and block, with s tokens, width h and a heads::
#
#     s h (34 + 5 a s / h)
#
# Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022,
# section 4.1 (equation 1), for 16-bit activations and dropout masks of one byte, without tensor
# parallelism. Embeddings and the last layer are its section 4.3. Floating-point operations of a
# block, 24 s h^2 + 4 s^2 h: Narayanan et al., Efficient Large-Scale Language Model Training on GPU
# Clusters Using Megatron-LM, 2021, appendix.

TRANSFORMER_OPERATIONS = {
    # Gathers of tokens, positions and segments, their sums, a normalization, dropout.
    "embedding": 8,
    # 6 products, their biases and reshapes, 2 normalizations, softmax, gelu, dropout, additions.
    "block": 30,
    # A normalization, a product, the loss.
    "head": 8,
}
"""Operations of a forward pass, counted in layers as Keras writes them; fused, there are fewer."""

_TOKEN_BYTES = 4
_LOGIT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """Shape of a transformer."""

    num_blocks: int  # Number of blocks
    width: int  # Width of its vectors, h
    num_heads: int  # Number of heads of each attention, a
    vocabulary: int  # Number of distinct tokens, v
    positions: int  # Number of position embeddings
    sequence: int  # Tokens of a sample, s
    segments: int = 0  # Number of segment embeddings, 0 or more


def bert_large(*, sequence: int = 512) -> PublishedModel:
    """Return BERT-large with both of its pretraining heads."""
    shape = TransformerShape(
        num_blocks=24,
        width=1024,
        num_heads=16,
        vocabulary=30522,
        positions=512,
        segments=2,
        sequence=sequence,
    )
    h, v = shape.width, shape.vocabulary
    # 15 % of the tokens are predicted, each by a dense layer, a normalization and the embeddings.
    predicted = 0.15 * sequence
    # Pooler and next sentence; dense layer, normalization and biases of the masked tokens.
    parameters = (h * h + h) + (2 * h + 2) + (h * h + h) + 2 * h + v
    head = _transformers_layer(
        "head",
        parameters=parameters,
        activation_bytes=predicted * (8 * h + _LOGIT_BYTES * v) + 6 * h,
        boundary_bytes=0.0,
        workspace_bytes=predicted * _LOGIT_BYTES * v,
        forward_flops=predicted * 2 * (h * h + h * v) + 2 * h * h,
    )
    return _model(
        f"bert-large-{sequence}",
        shape,
        head,
        source="Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers for Language "
        "Understanding, 2019, section 3; parameters as in its published checkpoints",
    )


def gpt3(name: str = "1.3b", *, sequence: int = 2048) -> PublishedModel:
    """Return a model of GPT-3."""
    # The paper gives 24 heads to 1.3B and a width of 5140 to 13B, which do not divide; 16 heads
    # and 5120 do, and give the parameters of its names.
    num_blocks, width, num_heads = {"1.3b": (24, 2048, 16), "13b": (40, 5120, 40)}[name]
    shape = TransformerShape(
        num_blocks=num_blocks,
        width=width,
        num_heads=num_heads,
        vocabulary=50257,
        positions=2048,
        sequence=sequence,
    )
    s, h, v = sequence, width, shape.vocabulary
    head = _transformers_layer(
        "head",
        # The embeddings are the weights of the last product, too; their owner holds them.
        parameters=2 * h,
        activation_bytes=4 * s * h + _LOGIT_BYTES * s * v,
        boundary_bytes=0.0,
        workspace_bytes=_LOGIT_BYTES * s * v,
        forward_flops=2 * s * h * v,
    )
    return _model(
        f"gpt3-{name}",
        shape,
        head,
        source="Brown et al., Language Models are Few-Shot Learners, 2020, table 2.1",
    )


def _model(name: str, shape: TransformerShape, head: LayerCosts, *, source: str) -> PublishedModel:
    costs = ModelCosts(
        name=name,
        layers=(_embedding(shape), *_transformers_blocks(shape), head),
        input_bytes=_TOKEN_BYTES * shape.sequence,
    )
    return PublishedModel(
        costs=costs,
        num_parameters=costs.weight_bytes // WEIGHT_BYTES,
        num_operations=TRANSFORMER_OPERATIONS,
        kernels={"block": tuple(_block_kernels(shape))},
        source=source,
    )


def _embedding(shape: TransformerShape) -> LayerCosts:
    s, h = shape.sequence, shape.width
    tables = shape.vocabulary + shape.positions + shape.segments
    # BERT normalizes its embeddings, which keeps the inputs of the normalization.
    is_normalized = shape.segments > 0
    return _transformers_layer(
        "embedding",
        parameters=tables * h + is_normalized * 2 * h,
        activation_bytes=s * h + is_normalized * 2 * s * h,
        boundary_bytes=ACTIVATION_BYTES * s * h,
        workspace_bytes=ACTIVATION_BYTES * s * h,
        forward_flops=0.0,
    )


def _transformers_blocks(shape: TransformerShape) -> Iterator[LayerCosts]:
    s, h, a = shape.sequence, shape.width, shape.num_heads
    for number in range(shape.num_blocks):
        yield _transformers_layer(
            f"block_{number}",
            kind="block",
            parameters=12 * h * h + 13 * h,
            activation_bytes=s * h * (34 + 5 * a * s / h),
            boundary_bytes=ACTIVATION_BYTES * s * h,
            # The gradient of its largest activation: inside of the feed-forward part, or the
            # attention's scores.
            workspace_bytes=ACTIVATION_BYTES * max(4 * s * h, a * s * s),
            forward_flops=24 * s * h * h + 4 * s * s * h,
        )


def _block_kernels(shape: TransformerShape) -> Iterator[Kernel]:
    """Yield the kernels of a block: products, and the passes over memory between them."""
    s, h, a = shape.sequence, shape.width, shape.num_heads
    vectors, scores = s * h, a * s * s
    # Queries, keys and values; the attention's result; up and down in the feed-forward part.
    for inputs, outputs in ((1, 3), (1, 1), (1, 4), (4, 1)):
        yield Kernel(
            flops=2 * s * inputs * outputs * h * h,
            bytes=ACTIVATION_BYTES * (inputs + outputs) * vectors,
            fixed_bytes=WEIGHT_BYTES * inputs * outputs * h * h,
        )
    # Scores of queries and keys, and the values that they weigh.
    for _ in range(2):
        yield Kernel(
            flops=2 * s * s * h, bytes=ACTIVATION_BYTES * (2 * vectors + scores), fixed_bytes=0.0
        )
    # Softmax reads and writes; backward it reads its result and a gradient, and writes one.
    yield _passes(scores, forward=2, backward=3)
    yield _dropout(scores)
    for _ in range(2):
        yield _dropout(vectors)
        # The addition reads the residual; the normalization reads and writes.
        yield _passes(vectors, forward=3, backward=4)
    # gelu
    yield _passes(4 * vectors, forward=2, backward=3)


def _dropout(values: float) -> Kernel:
    """Read, write, and a mask of a byte, which the backward pass reads."""
    one_way = (2 * ACTIVATION_BYTES + 1) * values
    return Kernel(bytes=one_way, backward_bytes=one_way)


def _passes(values: float, *, forward: int, backward: int) -> Kernel:
    return Kernel(
        bytes=forward * ACTIVATION_BYTES * values,
        backward_bytes=backward * ACTIVATION_BYTES * values,
    )


def _transformers_layer(
    name: str,
    *,
    parameters: int,
    activation_bytes: float,
    boundary_bytes: float,
    workspace_bytes: float,
    forward_flops: float,
    kind: str = "",
) -> LayerCosts:
    return LayerCosts(
        name=name,
        kind=kind or name,
        weight_bytes=WEIGHT_BYTES * parameters,
        optimizer_bytes=ADAM_BYTES * parameters,
        activation_bytes=activation_bytes,
        boundary_bytes=boundary_bytes,
        workspace_bytes=workspace_bytes,
        forward_flops=forward_flops,
    )


# Published models by name.

_MODELS: dict[str, Callable[[], PublishedModel]] = {
    "bert-large": bert_large,
    "bert-large-128": partial(bert_large, sequence=128),
    "gpt3-1.3b": partial(gpt3, "1.3b"),
    "gpt3-13b": partial(gpt3, "13b"),
    "resnet-50": resnet50,
}


def model_names() -> tuple[str, ...]:
    """Return the names that `model_named` knows, sorted."""
    return tuple(sorted(_MODELS))


def model_named(name: str) -> PublishedModel:
    """Return a published model.

    Args:
        name: Name of the model; see `model_names`.

    Raises:
        ProfileError: PROF-039 if the name is unknown.

    >>> len(model_named("resnet-50").costs.layers)
    18
    """
    if name not in _MODELS:
        raise ProfileError(
            "PROF-039",
            f"There is no published model named {name!r}.{did_you_mean(name, _MODELS)}",
            why=f"Those described with evener are {', '.join(model_names())}.",
            fix="Use one of them, or profile a model of your own.",
        )
    return _MODELS[name]()


__all__ = [
    "Kernel",
    "PublishedModel",
    "bert_large",
    "gpt3",
    "model_named",
    "model_names",
    "resnet50",
]
