"""Sharding: the state of every tensor of a traced step, and what the parts compute.

One pass, front to back: an operation's rule says what the parts compute from the states of its
inputs; without a rule the operation is computed once. Loops and conditions are sharded like the
step, with one difference: nothing can be gathered or combined inside of them. Behind something that
was gathered, costly operations split its rows over the parts again.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import tensorflow as tf

from evener._tf_private.tracing import PER_PART_SCOPE
from evener.graph.dims import (
    BATCH,
    PartSymbol,
    Size,
    divide,
    has_batch,
    symbols_of,
    symbols_of_step,
)
from evener.graph.inference import Inference
from evener.graph.nodes import CHECKS, Graph, Node, Role, RowLoop, SymbolSource, Tensor
from evener.graph.ops.elementwise import elementwise
from evener.graph.ops.registry import Trait, has_trait, operation, reduced_axes
from evener.graph.ops.states import (
    FIRST,
    PER_PART,
    REPLICATED,
    SUM,
    Builder,
    Decision,
    Lower,
    Numbers,
    Partial,
    Sharded,
    Sharding,
    State,
    Unset,
    is_shardable,
    rows_per_sample,
    serves,
)
from evener.graph.rewrites import CONDITIONS, LOOPS, delay_broadcasts, merge_reads, num_leading
from evener.graph.trace import TracedStep, trace_step

# The tensors that a node reads, and the numbers that it is given in place of some of them.
#
# A number, such as a size or a position, may be computed from data: the longest length in a batch.
# Then it is a value like any other, and a part must not use its own maximum as that of the batch.

Symbols = Mapping[str, SymbolSource]


def requests_of(sharding: Sharding, node: Node) -> Iterator[tuple[Tensor, State | Numbers]]:
    """Yield every input of a node with the state that the node needs, or the numbers instead."""
    decision = sharding.decisions.get(node)
    for index, tensor in enumerate(node.inputs):
        yield tensor, REPLICATED if decision is None else decision.inputs[index]


def symbols_read(
    sharding: Sharding, node: Node, symbols: Symbols, *, is_in_body: bool = False
) -> set[str]:
    """Return the symbols whose numbers a node, or a body of it, may be given."""
    found: set[str] = set()
    decision = sharding.decisions.get(node)
    for tensor, request in requests_of(sharding, node):
        if isinstance(request, Numbers):
            found |= _symbols_in(request.sizes)
        elif tensor.is_sizes:
            found |= _symbols_in(tensor.value or ())
        if isinstance(request, Sharded):
            # To split a tensor takes the number of its rows, and of those of a sample.
            found |= _symbols_in((request.rows,))
            if tensor.shape and sharding.states.get(tensor) != request:
                found |= _symbols_in((tensor.shape[request.axis],))
    if decision is not None and decision.lower is not None:
        for tensor in (*node.inputs, *node.outputs):
            found |= _symbols_in((*(tensor.shape or ()), *(tensor.value or ())))
    if decision is not None and decision.needs_samples and is_in_body:
        for tensor in node.outputs:
            found |= _symbols_in(tensor.shape or ())
    for name, body in node.bodies.items():
        inside = Sharding() if decision is None else decision.bodies[name]
        of_body = {
            name for node in body for name in symbols_read(inside, node, symbols, is_in_body=True)
        }
        for tensor in body.outputs:
            of_body |= _symbols_in(tensor.value or ()) if tensor.is_sizes else set()
        own = {*body, *(tensor.node for tensor in body.inputs)}
        found |= {name for name in of_body if symbols[name].tensor.node not in own}
    return found


def _symbols_in(sizes: tuple[Size, ...]) -> set[str]:
    return {name for size in sizes for name in symbols_of_step(size)}


def is_known_to_parts(source: SymbolSource, state: State) -> bool:
    """Whether every part can read the number of a symbol from its part of the source."""
    if source.axis is None:
        return state == REPLICATED
    return not (isinstance(state, Sharded) and state.axis == source.axis)


# Rows of one size never meet rows of another.
#
# A rule says what it is given: that the parts compute an operation of their rows. Here it is held
# to
# it, so that a rule that knows of no other rows than the samples of the batch is not used for them.


def is_of_rows(node: Node, decision: Decision, rows: Size) -> bool:
    """Return whether an operation is computed of certain rows alone."""
    states = [*decision.inputs, *decision.outputs]
    if any(isinstance(state, Sharded) and state.rows != rows for state in states):
        return False
    numbers = [size for given in states if isinstance(given, Numbers) for size in given.sizes]
    if not _are_of(rows, (name for size in numbers for name in symbols_of(size))):
        return False
    if rows == BATCH:
        return True
    # A list that is made for rows of samples says so by sizes with the batch in them.
    tensors = (*node.inputs, *node.outputs)
    if not has_batch(rows) and any(tensor.dtype == tf.variant for tensor in tensors):
        return False
    return decision.lower is None or decision.lower_rows == rows


def _are_of(rows: Size, names: Iterable[str]) -> bool:
    return all(not isinstance(name, PartSymbol) or name.rows == rows for name in names)


# Work behind something that was gathered goes back to the parts.
#
# What is computed once, of all samples, has its result on one device: a sort of the batch, a batch
# of
# another data set joined to it, noise of 64 rows. A cheap operation that reads it is cheap there as
# well. Where a costly one does, its rows are split over the parts::
#
#     gathered, drawn, given     cheap        costly: split here      all behind it: on the parts
#     [64, 100] on gpu:0     ->  ...      ->  matrix product       -> ...
#
# Which tensors are split is a matter of speed: whatever is split is joined again where it is
# needed.

FEWEST_ROWS = 8
"""A known number of rows that is smaller is not split: there is next to nothing to compute."""
_LIST = "TensorListFromTensor"
"""Recurrent layers begin with a list of time steps, of which each has the samples."""
_DRAWS = ("Random", "StatelessRandom", "StatelessTruncated", "TruncatedNormal")


@dataclass(slots=True)
class Rows:
    """Finds which tensors that are computed once have rows to split."""

    # Sizes of the rows that a tensor may have come from
    sources: dict[Tensor, frozenset[Size]] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Iterable[Tensor]) -> Rows:
        """Return what is known before the first node: the rows of the arguments of a step."""
        rows = cls()
        for tensor in given:
            if tensor.shape and tensor.dtype not in (tf.resource, tf.variant):
                rows.sources[tensor] = frozenset({tensor.shape[0]})
        return rows

    def follow(self, node: Node) -> None:
        """Learn from which rows the results of a node come."""
        found: set[Size] = set()
        for tensor in node.inputs:
            found |= self.sources.get(tensor, frozenset())
        if node.op.startswith(_DRAWS):
            found |= {tensor.shape[0] for tensor in node.outputs if tensor.shape}
        if has_trait(node, Trait.OTHER_ROWS):
            found |= {tensor.shape[0] for tensor in node.outputs if found and tensor.shape}
        if found:
            self.sources |= dict.fromkeys(node.outputs, frozenset(found))

    def splits(self, node: Node, states: Sequence[State]) -> Iterator[list[State]]:
        """Yield states of the inputs of a costly node in which one is split."""
        if not has_trait(node, Trait.COSTLY):
            return
        for index, (tensor, state) in enumerate(zip(node.inputs, states, strict=True)):
            if state != REPLICATED or tensor.is_sizes or not tensor.dtype.is_floating:
                continue
            split = self._split(tensor, axis=int(node.op == _LIST))
            if split is not None:
                yield [split if k == index else given for k, given in enumerate(states)]

    def _split(self, tensor: Tensor, axis: int) -> Sharded | None:
        sources = self.sources.get(tensor)
        if sources is None or tensor.shape is None or len(tensor.shape) <= axis:
            return None
        size = tensor.shape[axis]
        if is_shardable(tensor.shape, Sharded(axis)):
            return Sharded(axis)
        # Nothing tells a number of rows from another number but where it comes from.
        if isinstance(size, int):
            is_of_rows = any(divide(size, rows) is not None for rows in sources)
            if size < FEWEST_ROWS or not is_of_rows:
                return None
        return Sharded(axis, 1, size)


# Statistics of the samples of one part: ``batch_norm="per_device"``.
#
# These are not in the tables of rules: what they say is not the same as on one device.


def mean_per_part(node: Node, states: Sequence[State]) -> Decision | None:
    """The mean over the samples of a part, where a layer asks for it; of its rows, if need be."""
    scopes = node.name.split("/")[:-1]
    if node.op != "Mean" or not any(name.startswith(PER_PART_SCOPE) for name in scopes):
        return None
    shape, state = node.inputs[0].shape, states[0]
    gone = None if shape is None else reduced_axes(shape, node.inputs[1].value)
    rows = state if isinstance(state, Sharded) else _rows(shape, gone or ())
    if rows is None or rows.axis not in (gone or ()) or states[1] != REPLICATED:
        return None
    return Decision(inputs=(rows, REPLICATED), outputs=(PER_PART,))


def _rows(shape: tuple[Size, ...] | None, axes: Iterable[int]) -> Sharded | None:
    """Return the first axis that counts samples."""
    return next((Sharded(k) for k in axes if is_shardable(shape, Sharded(k))), None)


def _is_elementwise(node: Node) -> bool:
    rule = operation(node.op).rule
    return rule is not None and rule.decide is elementwise


def elementwise_per_part(node: Node, states: Sequence[State]) -> Decision | None:
    """Operations on statistics, alone or with the samples of the part."""
    if PER_PART not in states or not _is_elementwise(node):
        return None
    if any(isinstance(state, Partial) for state in states):
        return None
    if not any(isinstance(state, Sharded) for state in states):
        return Decision(inputs=tuple(states), outputs=(PER_PART,))
    decision = elementwise(node, [REPLICATED if s == PER_PART else s for s in states])
    if decision is None:
        return None
    pairs = list(zip(states, decision.inputs, strict=True))
    # A statistic that is wanted as rows would be that of other samples.
    if any(state == PER_PART and wanted != REPLICATED for state, wanted in pairs):
        return None
    inputs = tuple(state if state == PER_PART else wanted for state, wanted in pairs)
    return Decision(inputs=inputs, outputs=decision.outputs)


# Loops over rows, of which every part runs the rounds of its own rows.
#
# ::
#
#     one device    i = 0 .. n - 1               part 1 of (4, 3) rows    i = 4, 5, 6
#                   read(list, i)                                         read(own list, i - 4)
#
# A counter counts rows of the whole batch in every part, so that whatever a round computes of it is
# what one device computes. Lists of rows have the rows of the part.

_LAST = Partial("max")
"""A counter behind the loop: that of the last rows."""
_LISTS = (Role.READ, Role.WRITTEN, Role.PUSHED, Role.POPPED)


def decide_row_loop(node: Node, states: Sequence[State]) -> Decision | None:
    """Return what the parts compute of a loop over rows; None if it is none, or not of samples."""
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


# Loops and conditions whose bodies every part can run by itself.
#
# The bodies are sharded like the step, with one difference: nothing can be gathered or combined
# inside of them. A loop whose body needs that is computed once.

ShardBody: TypeAlias = Callable[[Graph, Sequence[State], Symbols], Sharding]
_MOST_ROUNDS = 8


def decide_functional(
    node: Node,
    states: Sequence[State],
    symbols: Symbols,
    shard: ShardBody,
    *,
    is_body: bool = False,
) -> Decision | None:
    """Return what the parts compute of a loop or a condition, or None if it is computed once."""
    over_rows = None if is_body else decide_row_loop(node, states)
    if over_rows is not None:
        return over_rows
    if not any(isinstance(state, Sharded | Unset | Partial) for state in states):
        return None
    if node.op in LOOPS:
        return _loop(node, states, symbols, shard)
    return _condition(node, states, symbols, shard)


def _loop(
    node: Node, states: Sequence[State], symbols: Symbols, shard: ShardBody
) -> Decision | None:
    """States that go into a round are those that come out of it."""
    body, condition = node.bodies["body"], node.bodies["cond"]
    entering = list(states)
    for _ in range(_MOST_ROUNDS):
        inside = shard(body, entering, symbols)
        leaving = [inside.states[t] for t in body.outputs]
        joined = [
            _join(before, after, tensor)
            for before, after, tensor in zip(entering, leaving, body.outputs, strict=True)
        ]
        if None in joined:
            return None
        if joined == entering:
            break
        entering = _next_round(states, entering, [state for state in joined if state is not None])
    else:
        return None
    test = shard(condition, entering, symbols)
    if not is_local(body, inside, symbols) or not is_local(condition, test, symbols):
        return None
    if test.states[condition.outputs[0]] != REPLICATED:
        return None
    if not _are_guarded(inside, symbols) or not _are_guarded(test, symbols):
        return None
    shardings = {"body": inside, "cond": test}
    for before, state, tensor in zip(states, entering, node.inputs, strict=True):
        if not _can_enter(before, state, tensor):
            return None

    return Decision(inputs=tuple(entering), outputs=tuple(entering), bodies=shardings)


def _next_round(
    given: Sequence[State], entering: Sequence[State], joined: Sequence[State]
) -> list[State]:
    """Return the states of the next round: of lists that begin without elements, at last.

    What is written to such a list may be split only once other states are known.
    """
    is_open = [isinstance(state, Unset) for state in given]
    triples = list(zip(is_open, entering, joined, strict=True))
    if any(before != after and not is_list for is_list, before, after in triples):
        return [before if is_list else after for is_list, before, after in triples]
    return list(joined)


def _condition(
    node: Node, states: Sequence[State], symbols: Symbols, shard: ShardBody
) -> Decision | None:
    """All branches give results in the same state."""
    first = num_leading(node)
    if states[0] != REPLICATED:
        return None
    shardings: dict[str, Sharding] = {}
    leaving: list[list[State]] = []
    for name, body in node.bodies.items():
        inside = shard(body, states[first:], symbols)
        if not is_local(body, inside, symbols) or not _are_guarded(inside, symbols):
            return None
        shardings[name] = inside
        leaving.append([inside.states[t] for t in body.outputs])
    results: list[State] = []
    for index, column in enumerate(zip(*leaving, strict=True)):
        state: State | None = column[0]
        for name, other in zip(node.bodies, column, strict=True):
            tensor = node.bodies[name].outputs[index]
            state = None if state is None else _join(state, other, tensor)
        if state is None:
            return None
        results.append(state)
    for name, body in node.bodies.items():
        for state, tensor in zip(results, body.outputs, strict=True):
            if isinstance(state, Sharded) and tensor.dtype != tf.variant:
                if not is_shardable(tensor.shape, state):
                    return None
            if shardings[name].states[tensor] != state and not _can_become(
                shardings[name].states[tensor], state
            ):
                return None

    return Decision(inputs=tuple(states), outputs=tuple(results), bodies=shardings)


def is_local(graph: Graph, sharding: Sharding, symbols: Symbols) -> bool:
    """Return whether every part can run a body by itself: nothing in it needs another part.

    What needs no samples is computed by every part.
    """
    arguments = {tensor.node for tensor in graph.inputs}
    for node in graph:
        if node in arguments or is_made_of_sizes(node):
            continue
        for name in symbols_read(sharding, node, symbols, is_in_body=True):
            state = sharding.states.get(symbols[name].tensor, REPLICATED)
            if not is_known_to_parts(symbols[name], state):
                return False
        decision = sharding.decisions.get(node)
        if decision is None:
            if node.is_stateful or any(sharding.states[t] != REPLICATED for t in node.inputs):
                return False
            continue
        for tensor, wanted in zip(node.inputs, decision.inputs, strict=True):
            if tensor.is_sizes and wanted == REPLICATED:
                continue
            if not _is_free(sharding.states[tensor], wanted, tensor):
                return False
    return True


def is_made_of_sizes(node: Node) -> bool:
    """Return whether nobody needs a node, because all that it computes is made of sizes."""
    return bool(node.outputs) and all(tensor.is_sizes for tensor in node.outputs)


def _is_free(state: State, wanted: State | Numbers, tensor: Tensor) -> bool:
    """Whether a part can have a tensor as it is needed without the other parts."""
    if isinstance(wanted, Numbers):
        return True
    if serves(state, wanted):
        return True
    if state != REPLICATED or not isinstance(wanted, Sharded) or tensor.dtype == tf.variant:
        return False
    # Blocks are cut out of a shape of which every part knows the numbers.
    names = {name for size in tensor.shape or () for name in symbols_of(size)}
    return wanted.outer == 1 or names <= {"B"} | symbols_of(wanted.rows)


def _are_guarded(sharding: Sharding, symbols: Symbols) -> bool:
    """Return whether a part without samples can skip what needs them: its shapes are known."""
    return all(
        _has_known_shape(tensor, node, symbols)
        for node, decision in sharding.decisions.items()
        if decision.needs_samples
        for tensor in node.outputs
    )


def _has_known_shape(tensor: Tensor, node: Node, symbols: Symbols) -> bool:
    """Return whether all sizes of a tensor are known without it."""
    if tensor.shape is None:
        return False
    names = {name for size in tensor.shape for name in symbols_of_step(size)}
    return all(symbols[name].tensor.node is not node for name in names)


def _join(before: State, after: State, tensor: Tensor) -> State | None:
    """Return the state that serves both; None if there is none without gathering."""
    if before == after or isinstance(after, Unset):
        return before
    if isinstance(before, Unset):
        return after
    if before == REPLICATED and isinstance(after, Sharded | Partial):
        return after
    if isinstance(before, Sharded) and after == REPLICATED:
        return before if is_shardable(tensor.shape, before) else None
    if isinstance(before, Sharded) and isinstance(after, Sharded) and tensor.dtype != tf.variant:
        # What is given to a loop is split anew, as the loop has it: the zeros of an RNN layer.
        return after if is_shardable(tensor.shape, after) else None
    return None


def _can_enter(before: State, state: State, tensor: Tensor) -> bool:
    """Whether what is given to a loop can be had in the state that the loop needs."""
    if before == state or isinstance(before, Unset):
        return True
    if tensor.dtype == tf.variant:
        return False
    return not isinstance(state, Sharded) or is_shardable(tensor.shape, state)


def _can_become(state: State, wanted: State) -> bool:
    return state == wanted or (state == REPLICATED and isinstance(wanted, Sharded))


# The sharding of every tensor of a graph, from that of its inputs: one pass, front to back.


def propagate(
    graph: Graph,
    inputs: Mapping[Tensor, State],
    symbols: Symbols,
    *,
    is_body: bool = False,
    given: Iterable[Tensor] | None = None,
) -> Sharding:
    """Find the state of every tensor."""
    rows = None if given is None else Rows.of(given)
    sharding = Sharding()
    for tensor in graph.inputs:
        sharding.states[tensor] = inputs.get(tensor, REPLICATED)
    for node in graph:
        if node.op == "Placeholder" and node.outputs[0] in sharding.states:
            continue
        states = [sharding.states[t] for t in node.inputs]
        decision = _decide_by_rows(node, states, symbols, is_body=is_body)
        if decision is None and rows is not None:
            trials = (_decide_by_rows(node, split, symbols) for split in rows.splits(node, states))
            decision = next(filter(None, trials), None)
        if rows is not None:
            rows.follow(node)
        if decision is not None:
            sharding.decisions[node] = decision
        for index, tensor in enumerate(node.outputs):
            sharding.states[tensor] = REPLICATED if decision is None else decision.outputs[index]
    return sharding


def _decide_by_rows(
    node: Node, states: Sequence[State], symbols: Symbols, *, is_body: bool = False
) -> Decision | None:
    """Return what the parts compute of a node: of its inputs those that are split alike stay so."""
    found = dict.fromkeys(state.rows for state in states if isinstance(state, Sharded))
    for rows in found or [BATCH]:
        alike = [
            REPLICATED if isinstance(state, Sharded) and state.rows != rows else state
            for state in states
        ]
        decision = decide(node, alike, symbols, is_body=is_body)
        if decision is not None and is_of_rows(node, decision, rows):
            return decision
    return None


def decide(
    node: Node, states: Sequence[State], symbols: Symbols, *, is_body: bool = False
) -> Decision | None:
    """Return what the parts compute of a node, or None if it is computed once."""
    if node.has_side_effect:
        return None
    if not is_body:
        # Bodies cannot average what the parts hold, so there the statistics are exact.
        decision = mean_per_part(node, states) or elementwise_per_part(node, states)
        if decision is not None:
            return decision
    states = [REPLICATED if state == PER_PART else state for state in states]
    rules = operation(node.op)
    if any(isinstance(state, Partial) for state in states):
        for rule in (rules.inside_rule if is_body else None, rules.partial_rule):
            decision = None if rule is None else rule(node, states)
            if decision is not None:
                return decision
        states = [REPLICATED if isinstance(s, Partial) else s for s in states]
    if node.bodies:
        return decide_functional(node, states, symbols, _propagate_body, is_body=is_body)
    decision = None if rules.rule is None else rules.rule(node, states)
    return decision if decision is not None and _is_possible(node, decision) else None


def _is_possible(node: Node, decision: Decision) -> bool:
    """Return whether all tensors that a rule wants sharded have rows of samples for certain."""
    pairs = [*zip(node.inputs, decision.inputs, strict=True)]
    pairs += [*zip(node.outputs, decision.outputs, strict=True)]
    return all(
        tensor.dtype == tf.variant or is_shardable(tensor.shape, state)
        for tensor, state in pairs
        if isinstance(state, Sharded)
    )


def _propagate_body(body: Graph, states: Sequence[State], symbols: Symbols) -> Sharding:
    return propagate(body, dict(zip(body.inputs, states, strict=True)), symbols, is_body=True)


# Traced step with the state of every tensor: which tensors the parts split, and how.


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedStep:
    """Traced step with the state of every tensor."""

    graph: Graph  # Nodes of the step
    inference: Inference  # Sources of the symbols of sizes
    sharding: Sharding  # States of all tensors, and what the parts compute
    # Nodes that side effects, checks or results need, in an order in which they can run; without
    # constants
    nodes: Sequence[Node] = ()

    def requests(self, node: Node) -> Iterator[tuple[Tensor, State | Numbers]]:
        """Yield every input of a node with the state that the node needs."""
        return requests_of(self.sharding, node)

    def symbol_sources(self, node: Node) -> Iterator[SymbolSource]:
        """Yield the sizes and elements of other nodes' tensors that a node is given as numbers."""
        symbols = self.inference.symbols
        for name in symbols_read(self.sharding, node, symbols):
            if symbols[name].tensor.node is not node:
                yield symbols[name]


def shard_step(traced: TracedStep, *, splits_rows: bool = False) -> ShardedStep:
    """Find the state of every tensor of a step; equal reads of its variables become one."""
    graph = traced.graph
    merge_reads(graph)
    delay_broadcasts(graph)
    num_arguments = len(traced.batch_axes)
    states = {
        tensor: Sharded(axis)
        for tensor, axis in zip(graph.inputs, traced.batch_axes, strict=False)
        if axis is not None
    }
    given = graph.inputs[:num_arguments] if splits_rows else None
    sharding = propagate(graph, states, traced.inference.symbols, given=given)
    step = ShardedStep(graph=graph, inference=traced.inference, sharding=sharding)
    return dataclasses.replace(step, nodes=_needed_nodes(step))


def _needed_nodes(step: ShardedStep) -> list[Node]:
    needed: set[Node] = set()
    arguments = {tensor.node for tensor in step.graph.inputs}
    stack = [node for node in step.graph if node.has_side_effect or node.op in CHECKS]
    stack.extend(_makers(step, [(tensor, REPLICATED) for tensor in step.graph.outputs]))
    while stack:
        node = stack.pop()
        if node in needed or node in arguments:
            continue
        needed.add(node)
        stack.extend(_makers(step, step.requests(node)))
        stack.extend(source.tensor.node for source in step.symbol_sources(node))
    return [node for node in step.graph if node in needed and node.op != "Const"]


def _makers(
    step: ShardedStep, requests: Iterable[tuple[Tensor, State | Numbers]]
) -> Iterator[Node]:
    """Yield the nodes that make tensors, or the sizes that tensors are made of."""
    for tensor, request in requests:
        if isinstance(request, Numbers):
            continue
        if not tensor.is_sizes:
            yield tensor.node
            continue
        for size in tensor.value or ():
            for name in symbols_of(size) - {"B"}:
                yield step.inference.symbols[name].tensor.node


# Functions of a batch that compute each row from that row alone.
#
# Such a function gives the same rows whichever others it is given. What is known of the states of
# tensors proves it: nothing is joined, no number of the batch is read, and no operation is replaced
# by one that knows where its rows are.

_LOG = logging.getLogger("evener")
_SAME_FOR_ROWS = frozenset({"StridedSlice"})
"""Operations whose replacement is the same operation, with the numbers of rows of a part."""


def is_row_wise(function: Callable[..., Sequence[Any]], specs: Sequence[tf.TensorSpec]) -> bool:
    """Return whether a function computes each row of its results from that row alone."""
    try:
        traced = trace_step(function, specs, [0] * len(specs), autograph=False)
        step = shard_step(traced)
    # Then it stays as it is: whoever asks can do without an answer, and not without the function.
    except Exception as error:
        _LOG.debug("a function of a batch is not partitioned: %s", error)
        return False
    if not all(_is_of_rows(step, node) for node in step.nodes):
        return False
    states = step.sharding.states
    return all(
        states.get(tensor) == FIRST and tensor.shape and tensor.shape[0] == BATCH
        for tensor in step.graph.outputs
    )


def _is_of_rows(step: ShardedStep, node: Node) -> bool:
    """Return whether a node computes rows from the same rows, or is the same for all batches."""
    decision = step.sharding.decisions.get(node)
    if node.has_side_effect or node.bodies or node.op in LOOPS | CONDITIONS:
        return False
    if decision is not None and decision.lower is not None and node.op not in _SAME_FOR_ROWS:
        return False
    if any(True for _ in step.symbol_sources(node)):
        return False
    return all(_reads_rows(step, *request) for request in step.requests(node))


def _reads_rows(step: ShardedStep, tensor: Tensor, request: State | Numbers) -> bool:
    if isinstance(request, Numbers):
        return _names(request.sizes) <= symbols_of(FIRST.in_part)
    if tensor.is_sizes:
        return not _names(tensor.value or ())
    state = step.sharding.states.get(tensor, REPLICATED)
    if isinstance(state, Sharded):
        return state == request and state.rows == BATCH
    return state == REPLICATED


def _names(sizes: Sequence[Size]) -> set[str]:
    return {name for size in sizes for name in symbols_of(size)}
