"""Loops over rows, of which every part runs the rounds of its own rows.

::

    one device    i = 0 .. n - 1               part 1 of (4, 3) rows    i = 4, 5, 6
                  read(list, i)                                         read(own list, i - 4)

A counter counts rows of the whole batch in every part, so that whatever a round computes of it is
what one device computes. Lists of rows have the rows of the part.
"""

from __future__ import annotations

from collections.abc import Sequence

from evener.graph.dims import Size
from evener.graph.nodes import Graph, Node, Role, RowLoop
from evener.ops.builder import Builder
from evener.ops.decision import Decision, Lower, Sharding
from evener.ops.states import (
    FIRST,
    REPLICATED,
    SUM,
    Numbers,
    Partial,
    Sharded,
    State,
    Unset,
    rows_per_sample,
)

_LAST = Partial("max")
"""A counter behind the loop: that of the last rows."""
_LISTS = (Role.READ, Role.WRITTEN, Role.PUSHED, Role.POPPED)


def decide_row_loop(node: Node, states: Sequence[State]) -> Decision | None:
    """Return what the parts compute of a loop over rows; None if it is none, or not of samples.

    Args:
        node: A loop of the step, not of a body.
        states: The states of its inputs.
    """
    loop = node.row_loop
    # XLA makes lists of a size that is known when it compiles.
    if loop is None or node.xla:
        return None
    split = _split(loop, states)
    inner = rows_per_sample(loop.count, split)
    if inner is None:
        return None
    begin, count = split.before_part * inner, split.in_part * inner
    inputs: list[State | Numbers] = []
    held: list[State] = []
    lengths: dict[int, Size] = {}
    for index, (role, given) in enumerate(zip(loop.roles, states, strict=True)):
        state = _state_of(role, given, split)
        is_list = node.inputs[index].dtype.name == "variant"
        is_new = isinstance(given, Unset) and role in (Role.WRITTEN, Role.PUSHED)
        if is_list and given != state and not is_new:
            return None
        if role is Role.WRITTEN and isinstance(given, Unset):
            lengths[index] = count
        inputs.append(Numbers((begin,)) if role is Role.COUNTER else state)
        held.append(state)
    outputs = [
        _LAST if role is Role.COUNTER and not tensor.is_sizes else state
        for role, tensor, state in zip(loop.roles, node.outputs, held, strict=True)
    ]
    return Decision(
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        bodies={
            "body": _of_body(node.bodies["body"], loop, held, begin, count),
            "cond": _of_condition(node.bodies["cond"], loop, held, begin + count),
        },
        list_lengths=lengths,
    )


def _split(loop: RowLoop, states: Sequence[State]) -> Sharded:
    """Return what is split: the rows of its lists, or those of the batch."""
    pairs = zip(loop.roles, states, strict=True)
    found = (s for role, s in pairs if role in _LISTS and isinstance(s, Sharded) and s.axis == 0)
    return next(found, FIRST)


def _state_of(role: Role, given: State, split: Sharded) -> State:
    """Return in which state a part has an argument."""
    if role is Role.READ:
        # What all parts have is read at the row of the whole batch.
        return given if given == split else REPLICATED
    if role in _LISTS:
        return split
    return SUM if role is Role.SUM else REPLICATED


def _of_body(
    body: Graph, loop: RowLoop, held: Sequence[State], begin: Size, count: Size
) -> Sharding:
    sharding = _replicated(body)
    for tensors in (body.inputs, body.outputs):
        sharding.states |= dict(zip(tensors, held, strict=True))
    for node, index in loop.at_rows.items():
        if isinstance(held[index], Sharded):
            sharding.decisions[node] = _as_one_device(node, lower=_at_own_row(begin))
    for node in loop.made:
        inputs = (REPLICATED, Numbers((count,)))
        sharding.decisions[node] = Decision(inputs=inputs, outputs=(REPLICATED,))
    return sharding


def _of_condition(cond: Graph, loop: RowLoop, held: Sequence[State], end: Size) -> Sharding:
    sharding = _replicated(cond)
    sharding.states |= dict(zip(cond.inputs, held, strict=True))
    for node in loop.tests:
        inputs = (REPLICATED, Numbers((end,)))
        sharding.decisions[node] = Decision(inputs=inputs, outputs=(REPLICATED,))
    return sharding


def _replicated(graph: Graph) -> Sharding:
    """Return the sharding of a body that every part runs as it is: a round is one row."""
    sharding = Sharding()
    for tensor in (*graph.inputs, *(tensor for node in graph for tensor in node.outputs)):
        sharding.states[tensor] = REPLICATED
    return sharding


def _as_one_device(node: Node, *, lower: Lower) -> Decision:
    count = len(node.inputs)
    return Decision(
        inputs=(REPLICATED,) * count, outputs=(REPLICATED,) * len(node.outputs), lower=lower
    )


def _at_own_row(begin: Size) -> Lower:
    """Read or write a list of the part's rows at a row of the whole batch."""

    def lower(builder: Builder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        dtype = node.inputs[1].dtype
        own = builder.op("Sub", [inputs[1], builder.number(begin, dtype)], {"T": dtype})
        return builder.copy(node.op, node.name, [inputs[0], *own, *inputs[2:]], node.attrs)

    return lower
