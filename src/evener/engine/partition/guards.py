"""Operations in bodies whose kernels fail without samples: a part that has none skips them.

A task that such an operation is in is skipped as a whole. A loop is not: it counts its rounds, and
what is behind it reads the count. So the operation alone is put into a condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from evener.engine.partition.functions import FunctionBuilder, InputArgument, NumberArgument
from evener.engine.sharding.decision import Decision, rows_of
from evener.engine.sharding.states import Partial, Sharded, State
from evener.engine.trace.dims import Size
from evener.engine.trace.graph import Node, Tensor
from evener.tf_compat import graphs


def add_guarded(
    builder: FunctionBuilder, node: Node, inputs: Sequence[str], decision: Decision
) -> Sequence[str]:
    """Add an operation that runs where a part has samples; elsewhere there are no rows.

    Args:
        builder: The function of a body.
        node: The operation.
        inputs: References to its inputs.
        decision: What the parts compute.
    """
    branches = {
        "then_branch": _branch(builder, node, decision, has_samples=True),
        "else_branch": _branch(builder, node, decision, has_samples=False),
    }
    extra = extra_arguments(branches.values(), len(inputs))
    attrs: dict[str, Any] = {
        "Tcond": tf.bool,
        "Tin": graphs.type_list([t.dtype for t in node.inputs] + [tf.int32] * len(extra)),
        "Tout": graphs.type_list([t.dtype for t in node.outputs]),
        "output_shapes": graphs.unknown_shapes(len(node.outputs)),
    }
    for name, branch in branches.items():
        branch.end_with(extra)
        builder.include(branch)
        attrs[name] = graphs.function_reference(branch.name)
    numbers = [builder.number_argument(argument) for argument in extra]
    in_part = Sharded(0, 1, rows_of(decision)).in_part
    sizes = [builder.number(in_part, tf.int32), builder.constant(0, tf.int32)]
    has_samples = builder.op("Greater", sizes, {"T": tf.int32})
    return builder.op(
        "StatelessIf", [*has_samples, *inputs, *numbers], attrs, private=graphs.LOWERED
    )


def _branch(
    parent: FunctionBuilder, node: Node, decision: Decision, *, has_samples: bool
) -> FunctionBuilder:
    builder = FunctionBuilder(
        "samples" if has_samples else "no_samples", inference=parent.inference
    )
    builder.may_be_on_cpu, builder.origin = parent.may_be_on_cpu, parent.origin
    given = [
        builder.argument(InputArgument(k), tensor.dtype) for k, tensor in enumerate(node.inputs)
    ]
    if not has_samples:
        pairs = zip(node.outputs, decision.outputs, strict=True)
        outputs = [without_samples(builder, tensor, state) for tensor, state in pairs]
    elif decision.lower is not None:
        outputs = decision.lower(builder, node, given)
    else:
        outputs = builder.copy(node.op, node.name, given, node.attrs)
    for reference, tensor in zip(outputs, node.outputs, strict=True):
        builder.output(reference, tensor.dtype)
    return builder


def without_samples(builder: FunctionBuilder, tensor: Tensor, state: State) -> str:
    """Add what a part without samples holds of a tensor: no rows, or terms that change nothing."""
    assert tensor.shape is not None
    neutral = builder.constant(neutral_number(state, tensor.dtype), tensor.dtype)
    sizes = builder.vector(sizes_without_samples(tensor.shape, state), tf.int32)
    return builder.op("Fill", [sizes, neutral], {"T": tensor.dtype, "index_type": tf.int32})[0]


def sizes_without_samples(shape: tuple[Size, ...], state: State) -> tuple[Size, ...]:
    """Return the shape of what a part without samples holds."""
    if isinstance(state, Sharded):
        return (*shape[: state.axis], 0, *shape[state.axis + 1 :])
    return shape


def neutral_number(state: State, dtype: tf.DType) -> Any:
    """Return the number that changes nothing when parts are combined."""
    combine = state.combine if isinstance(state, Partial) else "sum"
    numbers = {"sum": 0, "prod": 1, "all": True, "any": False, "max": None, "min": None}
    number = numbers[combine]
    if number is None:
        number = dtype.min if combine == "max" else dtype.max
        if dtype.is_floating:
            number = float("-inf") if combine == "max" else float("inf")
    return number


def extra_arguments(functions: Iterable[FunctionBuilder], count: int) -> list[NumberArgument]:
    """Return the numbers that functions are given behind their first arguments."""
    found: dict[NumberArgument, None] = {}
    for function in functions:
        for argument in list(function.arguments)[count:]:
            assert isinstance(argument, NumberArgument)
            found[argument] = None
    return list(found)
