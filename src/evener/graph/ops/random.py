"""Random numbers: every part draws, bit by bit, the rows that one device would have drawn.

The stateless operations draw with Philox, a function of a key and a counter of 128 bits. Every
number of the counter gives a block, a block gives a group of elements, and a part begins at a block
further on::

    elements  0 1 2 3 | 4 5 6 7 | 8 9 ...      4 in a group, or 2 of 8 bytes each
    counter   c       | c + 1   | c + 2
    part 1 begins at 6:   draws from c + 1 on, without the first 2

What rejects numbers (truncated normal, gamma) has a fixed number of blocks in reserve: 64 for every
element of a group, 256 for every gamma. That is how the kernels of CPUs and GPUs are made, whatever
the number of their threads.

This needs a part's elements to be contiguous: no axis in front of the batch. Otherwise every part
draws the whole and takes its rows. So it is with operations that have a seed and no counter, with
an algorithm that is not known, and in functions that XLA compiles: it draws other numbers and
reserves other blocks.

The kernels of CPUs and GPUs have one algorithm, Philox. There "auto select" (3, what Keras and
TensorFlow ask for) and the operations that ask the device for an algorithm mean Philox (1). Only
devices of XLA's choose otherwise. Where a counter is moved, Philox is asked for by name.

`StatelessMultinomial` has no rule: its kernel on CPUs draws by the number of threads, that on GPUs
in another way. Operations with a state of their own run once, among them `RngReadAndSkip`, which
gives a generator's key and counter to the operations here.

Source: J. Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011), for Philox.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from evener.graph.dims import BATCH, Size, divide, product
from evener.graph.functions import FunctionBuilder
from evener.graph.nodes import Node
from evener.graph.ops.registry import Shape, first_batch_axis, given_by_input, rule, shape_rule
from evener.graph.ops.states import (
    PART_BATCH,
    PART_OFFSET,
    REPLICATED,
    ROWS,
    WHOLE,
    Decision,
    Lower,
    Numbers,
    Sharded,
    State,
    known,
    numbers_of,
    part_sizes,
    require,
    rows_per_sample,
    shape_of,
)

WITH_SEED = (
    "StatelessRandomUniform",
    "StatelessRandomNormal",
    "StatelessTruncatedNormal",
    "StatelessRandomUniformInt",
    "StatelessRandomUniformFullInt",
)


WITH_COUNTER = tuple(f"{op}V2" for op in WITH_SEED)


PHILOX, AUTO_SELECT = 1, 3
BLOCKS_PER_GAMMA, BLOCKS_PER_TRUNCATED = 256, 64
ASKS_DEVICE = ("StatelessRandomGetAlg", "StatelessRandomGetKeyCounterAlg")
# Their counters have a lower half of 0: a part's share of it is too small for a carry.
COUNTS_FROM_ZERO = ("StatelessRandomGetKeyCounter", "StatelessRandomGetKeyCounterAlg")


WITHOUT_COUNTER = {
    "StatelessRandomPoisson": (WHOLE, WHOLE, ROWS),
    "StatelessRandomBinomial": (WHOLE, WHOLE, ROWS, ROWS),
    "StatelessParameterizedTruncatedNormal": (WHOLE, WHOLE, ROWS, ROWS, ROWS, ROWS),
}
shape_rule.table(
    {
        f"""
        {" ".join((*WITH_SEED, *WITH_COUNTER, *WITHOUT_COUNTER))} StatelessRandomGammaV2
        StatelessRandomGammaV3 RandomUniform RandomStandardNormal RandomUniformInt TruncatedNormal
        """: given_by_input(0)
    }
)


@rule(*WITH_SEED, *WITH_COUNTER, inputs=WHOLE)
def _same_law(node: Node, states: Sequence[State]) -> Decision | None:
    shape, target = shape_of(node.outputs[0]), _batch_of(node)
    if not _is_philox(node) or product(shape[: target.axis]) != 1:
        return _whole(node, target)
    return Decision(
        inputs=(Numbers(part_sizes(shape, target)), *states[1:]),
        outputs=(target,),
        lower=_lower_draw(_elements_per_sample(shape, target)),
    )


@rule("StatelessRandomGammaV2", inputs=(WHOLE, WHOLE, ROWS))
@rule("StatelessRandomGammaV3", inputs=(WHOLE, WHOLE, WHOLE, WHOLE, ROWS))
def _gamma(node: Node, states: Sequence[State]) -> Decision | None:
    """Several samples of every alpha: sample j of alpha i is the element ``i * samples + j``."""
    shape, alpha, state = shape_of(node.outputs[0]), shape_of(node.inputs[-1]), states[-1]
    if isinstance(state, Sharded):
        front = len(shape) - len(alpha)
        target = Sharded(front + state.axis)
        is_whole = state.outer == 1 and shape[target.axis] == alpha[state.axis]
        require(is_whole and state.rows == BATCH)
        require(_is_philox(node) and product(alpha[: state.axis]) == 1)
        per_sample = _elements_per_sample(alpha, state) * product(shape[:front])
    else:
        state = REPLICATED
        target = _batch_of(node)
        if product(alpha) != 1 or not _is_philox(node) or product(shape[: target.axis]) != 1:
            return _whole(node, target)
        per_sample = _elements_per_sample(shape, target)
    local = Numbers(part_sizes(shape, target))
    lower = _lower_gamma(PART_OFFSET * per_sample)
    return Decision(inputs=(local, *states[1:-1], state), outputs=(target,), lower=lower)


def _by_seed(node: Node, states: Sequence[State]) -> Decision | None:
    """There is no counter to begin further on: the whole, if the parts have all parameters."""
    require(all(state == REPLICATED for state in states[1:]))
    return _whole(node, _batch_of(node))


for _op, _takes in WITHOUT_COUNTER.items():
    rule(_op, inputs=_takes)(_by_seed)


def _batch_of(node: Node) -> Sharded:
    require(node.inputs[0].value is not None)
    return known(first_batch_axis(shape_of(node.outputs[0])))


def _is_philox(node: Node) -> bool:
    if node.xla:
        return False
    if node.op in WITH_SEED or node.op == "StatelessRandomGammaV2":
        return True
    alg = node.inputs[3]
    return alg.value in ((PHILOX,), (AUTO_SELECT,)) or alg.node.op in ASKS_DEVICE


def _elements_per_sample(shape: Shape, state: Sharded) -> Size:
    return known(rows_per_sample(shape[state.axis])) * product(shape[state.axis + 1 :])


def _whole(node: Node, target: Sharded) -> Decision:
    shape, wanted = shape_of(node.outputs[0]), numbers_of(node.inputs[0])
    rows = known(rows_per_sample(shape[target.axis]))
    begins = tuple(PART_OFFSET * rows if k == target.axis else 0 for k in range(len(shape)))
    sizes = part_sizes(shape, target)
    ends = tuple(begin + size for begin, size in zip(begins, sizes, strict=True))

    def lower(builder: FunctionBuilder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        drawn = builder.op(node.op, inputs, node.attrs)
        bounds = [builder.vector(numbers, "int32") for numbers in (begins, ends, [1] * len(shape))]
        return [builder.strided_slice([drawn[0], *bounds], node.outputs[0].dtype)]

    inputs = (Numbers(wanted), *[REPLICATED] * (len(node.inputs) - 1))
    return Decision(inputs=inputs, outputs=(target,), lower=lower)


def _lower_draw(per_sample: Size) -> Lower:
    """Draw from the group on that the part's first element is in."""

    def lower(builder: FunctionBuilder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        dtype, shape_dtype = node.outputs[0].dtype, node.inputs[0].dtype
        group = 2 if dtype.size == 8 else 4
        reserved = BLOCKS_PER_TRUNCATED * group if "Truncated" in node.op else 1
        key, counter, others = _generator(builder, node, inputs)
        alg = builder.constant(PHILOX, tf.int32)
        op = node.op if node.op in WITH_COUNTER else f"{node.op}V2"
        groups = divide(per_sample, group)
        if groups is not None:
            blocks = builder.number(PART_OFFSET * groups * reserved, tf.uint64)
            counter = advanced_counter(builder, node, counter, blocks)
            attrs = {"dtype": dtype, "Tshape": shape_dtype}
            return builder.op(op, [inputs[0], key, counter, alg, *others], attrs)
        blocks, rest = _groups_before(builder, per_sample, group, reserved)
        counter = advanced_counter(builder, node, counter, blocks)
        count = builder.number(PART_BATCH * per_sample, tf.int32)
        count = builder.op("AddV2", [count, rest], {"T": tf.int32})[0]
        attrs = {"dtype": dtype, "Tshape": tf.int32}
        flat = builder.op(op, [_vector(builder, count), key, counter, alg, *others], attrs)[0]
        bounds = [_vector(builder, k) for k in (rest, count, builder.constant(1, tf.int32))]
        flat = builder.strided_slice([flat, *bounds], dtype)
        return builder.op("Reshape", [flat, inputs[0]], {"T": dtype, "Tshape": shape_dtype})

    return lower


def _groups_before(
    builder: FunctionBuilder, per_sample: Size, group: int, reserved: int
) -> tuple[str, str]:
    """Add the blocks of the whole groups before a part, and the elements behind them.

    The elements behind are an int32, which GPUs keep on the host, as sizes must be. Before the part
    there may be more elements than an int32 has numbers. It wraps then, by a multiple of the group.
    """
    before = PART_OFFSET * per_sample
    divisor = builder.constant(group, tf.int64)
    numbers = [builder.number(before, tf.int64), divisor]
    blocks = builder.op("FloorDiv", numbers, {"T": tf.int64})[0]
    if reserved != 1:
        factors = [blocks, builder.constant(reserved, tf.int64)]
        blocks = builder.op("Mul", factors, {"T": tf.int64})[0]
    divisor = builder.constant(group, tf.int32)
    numbers = [builder.number(before, tf.int32), divisor]
    rest = builder.op("FloorMod", numbers, {"T": tf.int32})[0]
    return builder.cast(blocks, tf.int64, tf.uint64), rest


def _lower_gamma(before: Size) -> Lower:
    """Draw from the counter on that the part's first element has."""

    def lower(builder: FunctionBuilder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        key, counter, others = _generator(builder, node, inputs)
        blocks = builder.number(before * BLOCKS_PER_GAMMA, tf.uint64)
        counter = advanced_counter(builder, node, counter, blocks)
        alg = builder.constant(PHILOX, tf.int32)
        attrs = {"dtype": node.outputs[0].dtype, "shape_dtype": node.inputs[0].dtype}
        return builder.op("StatelessRandomGammaV3", [inputs[0], key, counter, alg, *others], attrs)

    return lower


def _generator(
    builder: FunctionBuilder, node: Node, inputs: Sequence[str]
) -> tuple[str, str, Sequence[str]]:
    """Return key, counter and what follows them; older operations have a seed in their place."""
    if _has_seed(node):
        attrs = {"Tseed": node.inputs[1].dtype}
        key, counter = builder.op("StatelessRandomGetKeyCounter", [inputs[1]], attrs)
        return key, counter, inputs[2:]
    return inputs[1], inputs[2], inputs[4:]


def _has_seed(node: Node) -> bool:
    return node.op in WITH_SEED or node.op == "StatelessRandomGammaV2"


def advanced_counter(builder: FunctionBuilder, node: Node, counter: str, blocks: str) -> str:
    """Add the counter of a node, two uint64 with the lower one first, plus a number of blocks."""
    attrs: dict[str, Any] = {"T": tf.uint64}
    packed = {"T": tf.uint64, "N": 2, "axis": 0}
    if _has_seed(node) or node.inputs[2].node.op in COUNTS_FROM_ZERO:
        step = builder.op("Pack", [blocks, builder.constant(0, tf.uint64)], packed)[0]
        return builder.op("AddV2", [counter, step], attrs)[0]
    low, high = (builder.element(counter, k, tf.uint64) for k in range(2))
    total = builder.op("AddV2", [low, blocks], attrs)[0]
    wraps = builder.op("Less", [total, low], attrs)[0]
    carry = builder.cast(wraps, tf.bool, tf.uint64)
    high = builder.op("AddV2", [high, carry], attrs)[0]
    return builder.op("Pack", [total, high], packed)[0]


def _vector(builder: FunctionBuilder, number: str) -> str:
    return builder.op("Pack", [number], {"T": tf.int32, "N": 1, "axis": 0})[0]
