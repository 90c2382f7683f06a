"""BERT-large and the models of GPT-3, by their shapes.

Activations, in bytes per sample and block, with s tokens, width h and a heads::

    s h (34 + 5 a s / h)

Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022,
section 4.1 (equation 1), for 16-bit activations and dropout masks of one byte, without tensor
parallelism. Embeddings and the last layer are its section 4.3. Floating-point operations of a
block, 24 s h^2 + 4 s^2 h: Narayanan et al., Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM, 2021, appendix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evener.clusters.published.model import (
    ACTIVATION_BYTES,
    ADAM_BYTES,
    WEIGHT_BYTES,
    Kernel,
    PublishedModel,
)
from evener.profile import LayerCosts, ModelCosts

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
    """Shape of a transformer.

    Args:
        num_blocks: Number of blocks.
        width: Width of its vectors, h.
        num_heads: Number of heads of each attention, a.
        vocabulary: Number of distinct tokens, v.
        positions: Number of position embeddings.
        segments: Number of segment embeddings, 0 or more.
        sequence: Tokens of a sample, s.
    """

    num_blocks: int
    width: int
    num_heads: int
    vocabulary: int
    positions: int
    sequence: int
    segments: int = 0


def bert_large(*, sequence: int = 512) -> PublishedModel:
    """Return BERT-large with both of its pretraining heads.

    Args:
        sequence: Tokens of a sample, from 1 to 512.

    >>> round(bert_large().num_parameters / 1e6)
    336
    """
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
    head = _layer(
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
    """Return a model of GPT-3.

    Args:
        name: ``"1.3b"`` or ``"13b"``.
        sequence: Tokens of a sample, from 1 to 2048.

    >>> round(gpt3("13b").num_parameters / 1e9, 1)
    12.9
    """
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
    head = _layer(
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
        layers=(_embedding(shape), *_blocks(shape), head),
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
    return _layer(
        "embedding",
        parameters=tables * h + is_normalized * 2 * h,
        activation_bytes=s * h + is_normalized * 2 * s * h,
        boundary_bytes=ACTIVATION_BYTES * s * h,
        workspace_bytes=ACTIVATION_BYTES * s * h,
        forward_flops=0.0,
    )


def _blocks(shape: TransformerShape) -> Iterator[LayerCosts]:
    s, h, a = shape.sequence, shape.width, shape.num_heads
    for number in range(shape.num_blocks):
        yield _layer(
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


def _layer(
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
