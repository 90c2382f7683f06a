"""Published models by their shapes: ResNet-50, BERT-large and the models of GPT-3."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from evener.errors import ProfileError, did_you_mean
from evener.plan.profile import LayerCosts, ModelCosts

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


@dataclass(frozen=True, slots=True)
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

    def kernels(self) -> Iterator[Kernel]:
        """Yield its kernels: the convolution, and the normalization with a ReLU fused into it."""
        yield Kernel(
            flops=self.flops,
            bytes=ACTIVATION_BYTES * (self.size_before**2 * self.inputs + self.values),
            fixed_bytes=WEIGHT_BYTES * self.parameters,
        )
        # Forward: a pass for mean and variance, one that reads and writes. Backward: a pass over
        # the input and its gradient for two sums, and one that reads both and writes a gradient.
        one_pass = ACTIVATION_BYTES * self.values
        yield Kernel(bytes=3 * one_pass, backward_bytes=5 * one_pass)


def resnet50() -> PublishedModel:
    """Return ResNet-50 for images of 224 x 224 and 1000 classes.

    This is the version with strides in the 3 x 3 convolutions (v1.5). Each convolution is followed
    by a `BatchNormalization`, and most of them by a ReLU. The tensors saved for the backward pass
    are the result of each convolution, which the normalization reads, and the input of the next
    one.

    >>> resnet50().num_parameters
    25557032
    """
    image, classes, channels = 224, 1000, 64
    stem = Convolution(3, channels, 7, 112, image)
    size, size_before = 56, 56
    pooled = size**2 * channels
    # The backward pass of the pooling reads gradients and positions, and writes all.
    pooling = ACTIVATION_BYTES * (stem.values + pooled)
    kernels: dict[str, tuple[Kernel, ...]] = {
        "stem": (
            *stem.kernels(),
            Kernel(bytes=pooling, backward_bytes=pooling + ACTIVATION_BYTES * pooled),
        )
    }
    layers = [_resnet_layer("stem", (stem,), boundary=pooled, also_kept=pooled, kind="stem")]
    for group, (count, width, size) in enumerate(
        ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7))
    ):
        for number in range(count):
            before, outputs = (size if number else size_before), 4 * width
            first = Convolution(channels, width, 1, before, before)
            second = Convolution(width, width, 3, size, before)
            third = Convolution(width, outputs, 1, size, size)
            # The shortcut around the first block has another shape, too.
            shortcut = Convolution(channels, outputs, 1, size, before)
            convolutions = (first, second, third, *(() if number else (shortcut,)))
            name = f"group_{group}_block_{number}"
            # The addition reads the shortcut, in the kernel of the last ReLU; its gradient goes two
            # ways, and those of both ways are added up.
            one_pass = ACTIVATION_BYTES * third.values
            kernels[name] = (
                *(kernel for convolution in convolutions for kernel in convolution.kernels()),
                Kernel(bytes=one_pass, backward_bytes=2 * one_pass),
            )
            layers.append(
                _resnet_layer(
                    name,
                    convolutions,
                    boundary=third.values,
                    # The results of the first two ReLUs, and of the last one.
                    also_kept=first.values + second.values + third.values,
                    kind="" if number else "first",
                )
            )
            channels = outputs
        size_before = size
    parameters = channels * classes + classes
    head = LayerCosts(
        name="head",
        kind="head",
        weight_bytes=WEIGHT_BYTES * parameters,
        optimizer_bytes=ADAM_BYTES * parameters,
        activation_bytes=ACTIVATION_BYTES * channels + 4 * classes,
        workspace_bytes=4 * classes,
        forward_flops=2 * channels * classes,
    )
    pixel_bytes = 4
    costs = ModelCosts(
        name="resnet-50", layers=(*layers, head), input_bytes=image**2 * 3 * pixel_bytes
    )
    return PublishedModel(
        costs=costs,
        num_parameters=costs.weight_bytes // WEIGHT_BYTES,
        # Each convolution with its normalization and ReLU; in the blocks an addition.
        num_operations={"stem": 4, "first": 12, "block": 10, "head": 4},
        kernels=kernels,
        source="He et al., Deep Residual Learning for Image Recognition, 2016, table 1; strides as "
        "in torchvision and NVIDIA's ResNet-50 v1.5",
    )


def _resnet_layer(
    name: str, convolutions: Sequence[Convolution], *, boundary: int, also_kept: int, kind: str
) -> LayerCosts:
    parameters = sum(convolution.parameters for convolution in convolutions)
    values = [convolution.values for convolution in convolutions]
    return LayerCosts(
        name=name,
        kind=kind,
        weight_bytes=WEIGHT_BYTES * parameters,
        optimizer_bytes=ADAM_BYTES * parameters,
        # The moving mean and variance of each channel.
        state_bytes=WEIGHT_BYTES * 2 * sum(convolution.outputs for convolution in convolutions),
        activation_bytes=ACTIVATION_BYTES * (sum(values) + also_kept),
        boundary_bytes=ACTIVATION_BYTES * boundary,
        # The gradients of the result and of the input of the last convolution.
        workspace_bytes=2 * ACTIVATION_BYTES * max(values),
        forward_flops=sum(convolution.flops for convolution in convolutions),
    )


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


def bert_large(*, sequence: int = 512) -> PublishedModel:
    h, v = 1024, 30522
    # 15 % of the tokens are predicted, each by a dense layer, a normalization and the embeddings.
    predicted = 0.15 * sequence
    return _transformer(
        f"bert-large-{sequence}",
        num_blocks=24,
        width=h,
        num_heads=16,
        embeddings=v + 512 + 2,
        # BERT normalizes its embeddings, which keeps the inputs of the normalization.
        normalizes_embeddings=True,
        sequence=sequence,
        head=_transformer_layer(
            "head",
            # Pooler and next sentence; dense layer, normalization and biases of the masked tokens.
            parameters=(h * h + h) + (2 * h + 2) + (h * h + h) + 2 * h + v,
            activation_bytes=predicted * (8 * h + _LOGIT_BYTES * v) + 6 * h,
            workspace_bytes=predicted * _LOGIT_BYTES * v,
            forward_flops=predicted * 2 * (h * h + h * v) + 2 * h * h,
        ),
        source="Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers for Language "
        "Understanding, 2019, section 3; parameters as in its published checkpoints",
    )


def gpt3(name: str) -> PublishedModel:
    # The paper gives 24 heads to 1.3B and a width of 5140 to 13B, which do not divide; 16 heads
    # and 5120 do, and give the parameters of its names.
    num_blocks, h, num_heads = {"1.3b": (24, 2048, 16), "13b": (40, 5120, 40)}[name]
    s, v = 2048, 50257
    return _transformer(
        f"gpt3-{name}",
        num_blocks=num_blocks,
        width=h,
        num_heads=num_heads,
        embeddings=v + s,
        normalizes_embeddings=False,
        sequence=s,
        head=_transformer_layer(
            "head",
            # The embeddings are the weights of the last product, too; their owner holds them.
            parameters=2 * h,
            activation_bytes=4 * s * h + _LOGIT_BYTES * s * v,
            workspace_bytes=_LOGIT_BYTES * s * v,
            forward_flops=2 * s * h * v,
        ),
        source="Brown et al., Language Models are Few-Shot Learners, 2020, table 2.1",
    )


def _transformer(
    name: str,
    *,
    num_blocks: int,
    width: int,
    num_heads: int,
    embeddings: int,
    normalizes_embeddings: bool,
    sequence: int,
    head: LayerCosts,
    source: str,
) -> PublishedModel:
    """Return a transformer, given its head and the embeddings of tokens, positions and segments.

    Activations, in bytes per sample and block, with s tokens, width h and a heads::

        s h (34 + 5 a s / h)

    Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022,
    section 4.1 (equation 1), for 16-bit activations and dropout masks of one byte, without tensor
    parallelism. Embeddings and the last layer are its section 4.3. Floating-point operations of a
    block, 24 s h^2 + 4 s^2 h: Narayanan et al., Efficient Large-Scale Language Model Training on
    GPU Clusters Using Megatron-LM, 2021, appendix.
    """
    s, h, a = sequence, width, num_heads
    embedding = _transformer_layer(
        "embedding",
        parameters=embeddings * h + normalizes_embeddings * 2 * h,
        activation_bytes=s * h + normalizes_embeddings * 2 * s * h,
        boundary_bytes=ACTIVATION_BYTES * s * h,
        workspace_bytes=ACTIVATION_BYTES * s * h,
    )
    blocks = [
        _transformer_layer(
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
        for number in range(num_blocks)
    ]
    costs = ModelCosts(
        name=name, layers=(embedding, *blocks, head), input_bytes=_TOKEN_BYTES * sequence
    )
    return PublishedModel(
        costs=costs,
        num_parameters=costs.weight_bytes // WEIGHT_BYTES,
        num_operations=TRANSFORMER_OPERATIONS,
        kernels={"block": tuple(_block_kernels(s, h, a))},
        source=source,
    )


def _transformer_layer(
    name: str,
    *,
    parameters: int,
    activation_bytes: float,
    workspace_bytes: float,
    boundary_bytes: float = 0.0,
    forward_flops: float = 0.0,
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


def _block_kernels(s: int, h: int, a: int) -> Iterator[Kernel]:
    """Yield the kernels of a block: products, and the passes over memory between them."""
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
        yield Kernel(flops=2 * s * s * h, bytes=ACTIVATION_BYTES * (2 * vectors + scores))

    def passes(values: int, *, forward: int, backward: int) -> Kernel:
        return Kernel(
            bytes=forward * ACTIVATION_BYTES * values,
            backward_bytes=backward * ACTIVATION_BYTES * values,
        )

    def dropout(values: int) -> Kernel:
        # It reads and writes, and has a mask of a byte, which the backward pass reads.
        one_way = (2 * ACTIVATION_BYTES + 1) * values
        return Kernel(bytes=one_way, backward_bytes=one_way)

    # Softmax reads and writes; backward it reads its result and a gradient, and writes one.
    yield passes(scores, forward=2, backward=3)
    yield dropout(scores)
    for _ in range(2):
        yield dropout(vectors)
        # The addition reads the residual; the normalization reads and writes.
        yield passes(vectors, forward=3, backward=4)
    # gelu
    yield passes(4 * vectors, forward=2, backward=3)


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
