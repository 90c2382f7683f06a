"""Sharding: the state of every tensor of a traced step, and what the parts compute.

One pass, front to back: the rule of an operation says what the parts compute from the states of its
inputs; without a rule the operation is computed once. Loops and conditions are sharded like the
step, with one difference: nothing can be gathered or combined inside of them.

What is computed once, of all samples, has its result on one device: a sort of the batch, a batch of
another data set joined to it, noise of 64 rows. A cheap operation that reads it is cheap there as
well. Where a costly one does, its rows are split over the parts::

    gathered, drawn, given     cheap        costly: split here      all behind it: on the parts
    [64, 100] on gpu:0     ->  ...      ->  matrix product       -> ...

Which tensors are split is a matter of speed: whatever is split is joined again where it is needed.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from evener.graph.functions import FunctionBuilder
from evener.graph.inference import Inference
from evener.graph.nodes import CHECKS, Graph, Node, Role, SymbolSource, Tensor
from evener.graph.ops.elementwise import elementwise
from evener.graph.ops.registry import Trait, has_trait, operation, reduced_axes
from evener.graph.ops.states import (
    FIRST,
    PER_PART,
    REPLICATED,
    SUM,
    Decision,
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

Symbols = Mapping[str, SymbolSource]

# A known number of rows that is smaller is not split: there is next to nothing to compute.
FEWEST_ROWS = 8
_DRAWS = ("Random", "StatelessRandom", "StatelessTruncated", "TruncatedNormal")
_MOST_ROUNDS = 8
_LISTS = (Role.READ, Role.WRITTEN, Role.PUSHED, Role.POPPED)
# Operations whose replacement is the same operation, with the numbers of rows of a part.
_SAME_FOR_ROWS = frozenset({"StridedSlice"})
_LOG = logging.getLogger("evener")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedStep:
    """Traced step with the state of every tensor."""

    graph: Graph  # Nodes of the step
    inference: Inference  # Sources of the symbols of sizes
    sharding: Sharding  # States of all tensors, and what the parts compute
    # Nodes that side effects, checks or results need, in an order in which they can run; without
    # constants
    nodes: Sequence[Node]


def shard_step(traced: TracedStep, *, splits_rows: bool = False) -> ShardedStep:
    """Find the state of every tensor of a step; equal reads of its variables become one."""
    graph, symbols = traced.graph, traced.inference.symbols
    merge_reads(graph)
    delay_broadcasts(graph)
    arguments = graph.inputs[: len(traced.batch_axes)]
    states = {
        tensor: Sharded(axis)
        for tensor, axis in zip(arguments, traced.batch_axes, strict=True)
        if axis is not None
    }
    sharding = propagate(graph, states, symbols, given=arguments if splits_rows else None)
    return ShardedStep(
        graph=graph,
        inference=traced.inference,
        sharding=sharding,
        nodes=_needed_nodes(graph, sharding, symbols),
    )


def _needed_nodes(graph: Graph, sharding: Sharding, symbols: Symbols) -> list[Node]:
    needed: set[Node] = set()
    arguments = {tensor.node for tensor in graph.inputs}
    stack = [node for node in graph if node.has_side_effect or node.op in CHECKS]

    def ask_for(tensor: Tensor) -> None:
        if not tensor.is_sizes:
            stack.append(tensor.node)
            return
        names = symbols_of(*(tensor.value or ())) - {"B"}
        stack.extend(symbols[name].tensor.node for name in names)

    for tensor in graph.outputs:
        ask_for(tensor)
    while stack:
        node = stack.pop()
        if node in needed or node in arguments:
            continue
        needed.add(node)
        for tensor, request in requests_of(sharding, node):
            if not isinstance(request, Numbers):
                ask_for(tensor)
        stack.extend(source.tensor.node for source in symbol_sources(sharding, node, symbols))
    return [node for node in graph if node in needed and node.op != "Const"]


def requests_of(sharding: Sharding, node: Node) -> Iterator[tuple[Tensor, State | Numbers]]:
    """Yield every input of a node with the state that the node needs, or the numbers instead."""
    decision = sharding.decisions.get(node)
    for index, tensor in enumerate(node.inputs):
        yield tensor, REPLICATED if decision is None else decision.inputs[index]


def symbol_sources(sharding: Sharding, node: Node, symbols: Symbols) -> Iterator[SymbolSource]:
    """Yield the sizes and elements of other nodes' tensors that a node is given as numbers."""
    for name in sorted(symbols_read(sharding, node, symbols)):
        if symbols[name].tensor.node is not node:
            yield symbols[name]


def symbols_read(
    sharding: Sharding, node: Node, symbols: Symbols, *, is_in_body: bool = False
) -> set[str]:
    """Return the symbols whose numbers a node, or a body of it, may be given.

    A number, such as a size or a position, may be computed from data: the longest length in a
    batch. Then it is a value like any other, and a part must not use its own maximum as that of the
    batch.
    """
    sizes: list[Size] = []
    decision = sharding.decisions.get(node)
    for tensor, request in requests_of(sharding, node):
        if isinstance(request, Numbers):
            sizes += request.sizes
        elif tensor.is_sizes:
            sizes += tensor.value or ()
        if isinstance(request, Sharded):
            # To split a tensor takes the number of its rows, and of those of a sample.
            sizes.append(request.rows)
            if tensor.shape and sharding.states.get(tensor) != request:
                sizes.append(tensor.shape[request.axis])
    if decision is not None and decision.lower is not None:
        for tensor in (*node.inputs, *node.outputs):
            sizes += (*(tensor.shape or ()), *(tensor.value or ()))
    if decision is not None and decision.needs_samples and is_in_body:
        for tensor in node.outputs:
            sizes += tensor.shape or ()
    names = symbols_of_step(*sizes)
    for name, body in node.bodies.items():
        inside = Sharding() if decision is None else decision.bodies[name]
        own = {*body, *(tensor.node for tensor in body.inputs)}
        read = [symbols_read(inside, inner, symbols, is_in_body=True) for inner in body]
        read += [
            symbols_of_step(*(tensor.value or ())) for tensor in body.outputs if tensor.is_sizes
        ]
        names |= {other for some in read for other in some if symbols[other].tensor.node not in own}
    return names


def is_known_to_parts(source: SymbolSource, state: State) -> bool:
    """Return whether every part can read the number of a symbol from what it holds."""
    if source.axis is None:
        return state == REPLICATED
    return not (isinstance(state, Sharded) and state.axis == source.axis)


def is_made_of_sizes(node: Node) -> bool:
    """Return whether nobody needs a node, because all that it computes is made of sizes."""
    return bool(node.outputs) and all(tensor.is_sizes for tensor in node.outputs)


def propagate(
    graph: Graph,
    inputs: Mapping[Tensor, State],
    symbols: Symbols,
    *,
    is_body: bool = False,
    given: Iterable[Tensor] | None = None,
) -> Sharding:
    rows = None if given is None else _OtherRows(given)
    sharding = Sharding()
    for tensor in graph.inputs:
        sharding.states[tensor] = inputs.get(tensor, REPLICATED)
    for node in graph:
        if node.op == "Placeholder" and node.outputs[0] in sharding.states:
            continue
        states = [sharding.states[t] for t in node.inputs]
        decision = _decide_by_rows(node, states, symbols, is_body=is_body)
        if rows is not None:
            if decision is None:
                trials = (_decide_by_rows(node, s, symbols) for s in rows.splits(node, states))
                decision = next(filter(None, trials), None)
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
    kinds = dict.fromkeys(state.rows for state in states if isinstance(state, Sharded))
    for rows in kinds or [BATCH]:
        alike = [
            REPLICATED if isinstance(state, Sharded) and state.rows != rows else state
            for state in states
        ]
        decision = decide(node, alike, symbols, is_body=is_body)
        if decision is not None and _is_of_rows(node, decision, rows):
            return decision
    return None


def _is_of_rows(node: Node, decision: Decision, rows: Size) -> bool:
    """Return whether an operation is computed of certain rows alone.

    Rows of one size never meet rows of another. A rule says what it is given: that the parts
    compute an operation of their rows. Here it is held to it, so that a rule that knows of no other
    rows than the samples of the batch is not used for them.
    """
    states = [*decision.inputs, *decision.outputs]
    if any(isinstance(state, Sharded) and state.rows != rows for state in states):
        return False
    numbers = [size for state in states if isinstance(state, Numbers) for size in state.sizes]
    if any(isinstance(n, PartSymbol) and n.rows != rows for n in symbols_of(*numbers)):
        return False
    if rows == BATCH:
        return True
    # A list that is made for rows of samples says so by sizes with the batch in them.
    tensors = (*node.inputs, *node.outputs)
    if not has_batch(rows) and any(tensor.dtype == tf.variant for tensor in tensors):
        return False
    return decision.lower is None or decision.lower_rows == rows


def decide(
    node: Node, states: Sequence[State], symbols: Symbols, *, is_body: bool = False
) -> Decision | None:
    """Return what the parts compute of a node, or None if it is computed once."""
    if node.has_side_effect:
        return None
    if not is_body:
        # Bodies cannot average what the parts hold, so there the statistics are exact.
        decision = _mean_per_part(node, states) or _elementwise_per_part(node, states)
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
        over_rows = None if is_body else _decide_row_loop(node, states)
        if over_rows is not None:
            return over_rows
        if not any(isinstance(state, Sharded | Unset) for state in states):
            return None
        decide_bodies = _decide_loop if node.op in LOOPS else _decide_condition
        return decide_bodies(node, states, symbols)
    decision = None if rules.rule is None else rules.rule(node, states)
    if decision is None:
        return None
    # All tensors that a rule wants sharded have rows of samples for certain.
    pairs = [*zip(node.inputs, decision.inputs, strict=True)]
    pairs += [*zip(node.outputs, decision.outputs, strict=True)]
    is_possible = all(
        tensor.dtype == tf.variant or is_shardable(tensor.shape, state)
        for tensor, state in pairs
        if isinstance(state, Sharded)
    )
    return decision if is_possible else None


# Statistics of the samples of one part: ``batch_norm="per_device"``. These are not in the tables of
# rules: what they say is not the same as on one device.


def _mean_per_part(node: Node, states: Sequence[State]) -> Decision | None:
    """The mean over the samples of a part, where a layer asks for it; of its rows, if need be."""
    scopes = node.name.split("/")[:-1]
    shape = node.inputs[0].shape if node.op == "Mean" else None
    if shape is None or not any(name.startswith(PER_PART_SCOPE) for name in scopes):
        return None
    axes = reduced_axes(shape, node.inputs[1].value) or ()
    rows: State | None = states[0]
    if not isinstance(rows, Sharded):
        counting = (Sharded(axis) for axis in axes)
        rows = next((state for state in counting if is_shardable(shape, state)), None)
    if rows is None or rows.axis not in axes or states[1] != REPLICATED:
        return None
    return Decision(inputs=(rows, REPLICATED), outputs=(PER_PART,))


def _elementwise_per_part(node: Node, states: Sequence[State]) -> Decision | None:
    """Operations on statistics, alone or with the samples of the part."""
    rule = operation(node.op).rule
    is_partial = any(isinstance(state, Partial) for state in states)
    if PER_PART not in states or rule is None or rule.decide is not elementwise or is_partial:
        return None
    if not any(isinstance(state, Sharded) for state in states):
        return Decision(inputs=tuple(states), outputs=(PER_PART,))
    decision = rule(node, [REPLICATED if s == PER_PART else s for s in states])
    if decision is None:
        return None
    pairs = list(zip(states, decision.inputs, strict=True))
    # A statistic that is wanted as rows would be that of other samples.
    if any(state == PER_PART and wanted != REPLICATED for state, wanted in pairs):
        return None
    inputs = tuple(state if state == PER_PART else wanted for state, wanted in pairs)
    return Decision(inputs=inputs, outputs=decision.outputs)


class _OtherRows:
    """Finds which tensors that are computed once have rows to split."""

    def __init__(self, arguments: Iterable[Tensor]) -> None:
        # Sizes of the rows that a tensor may have come from.
        self._sources = {
            tensor: frozenset({tensor.shape[0]})
            for tensor in arguments
            if tensor.shape and tensor.dtype not in (tf.resource, tf.variant)
        }

    def follow(self, node: Node) -> None:
        """Learn from which rows the results of a node come."""
        rows: set[Size] = set()
        for tensor in node.inputs:
            rows |= self._sources.get(tensor, frozenset())
        if node.op.startswith(_DRAWS) or (rows and has_trait(node, Trait.OTHER_ROWS)):
            rows |= {tensor.shape[0] for tensor in node.outputs if tensor.shape}
        if rows:
            self._sources |= dict.fromkeys(node.outputs, frozenset(rows))

    def splits(self, node: Node, states: Sequence[State]) -> Iterator[list[State]]:
        """Yield states of the inputs of a costly node in which one is split."""
        if not has_trait(node, Trait.COSTLY):
            return
        # Recurrent layers begin with a list of time steps, of which each has the samples.
        axis = int(node.op == "TensorListFromTensor")
        for index, (tensor, state) in enumerate(zip(node.inputs, states, strict=True)):
            if state != REPLICATED or tensor.is_sizes or not tensor.dtype.is_floating:
                continue
            sources, shape = self._sources.get(tensor), tensor.shape
            if sources is None or shape is None or len(shape) <= axis:
                continue
            size, split = shape[axis], Sharded(axis)
            if not is_shardable(shape, split):
                # Nothing tells a number of rows from another number but where it comes from.
                is_of_rows = any(divide(size, rows) is not None for rows in sources)
                if isinstance(size, int) and (size < FEWEST_ROWS or not is_of_rows):
                    continue
                split = Sharded(axis, 1, size)
            yield [*states[:index], split, *states[index + 1 :]]


def _decide_loop(node: Node, states: Sequence[State], symbols: Symbols) -> Decision | None:
    """States that go into a round are those that come out of it."""
    body, condition = node.bodies["body"], node.bodies["cond"]
    entering = list(states)
    for _ in range(_MOST_ROUNDS):
        inside = _propagate_body(body, entering, symbols)
        triples = zip(entering, body.outputs, strict=True)
        joined = [_join(before, inside.states[t], t) for before, t in triples]
        if joined == entering:
            break
        changed = [state for state in joined if state is not None]
        if len(changed) < len(joined):
            return None
        # What is written to a list that begins without elements may be split only once other states
        # are known, so these lists change last.
        is_open = [isinstance(state, Unset) for state in states]
        rest = [
            before if is_list else after
            for is_list, before, after in zip(is_open, entering, changed, strict=True)
        ]
        entering = changed if rest == entering else rest
    else:
        return None
    test = _propagate_body(condition, entering, symbols)
    can_run = _can_run_alone(body, inside, symbols) and _can_run_alone(condition, test, symbols)
    if not can_run or test.states[condition.outputs[0]] != REPLICATED:
        return None
    for before, state, tensor in zip(states, entering, node.inputs, strict=True):
        # What is given to a loop must be had in the state that the loop needs.
        if before != state and not isinstance(before, Unset):
            is_list = tensor.dtype == tf.variant
            if is_list or (isinstance(state, Sharded) and not is_shardable(tensor.shape, state)):
                return None
    bodies = {"body": inside, "cond": test}
    return Decision(inputs=tuple(entering), outputs=tuple(entering), bodies=bodies)


def _decide_condition(node: Node, states: Sequence[State], symbols: Symbols) -> Decision | None:
    """All branches give results in the same state."""
    if states[0] != REPLICATED:
        return None
    entering = states[num_leading(node) :]
    bodies = {name: _propagate_body(b, entering, symbols) for name, b in node.bodies.items()}
    if not all(
        _can_run_alone(node.bodies[name], inside, symbols) for name, inside in bodies.items()
    ):
        return None
    results: list[State] = []
    for index in range(len(node.outputs)):
        tensors = {name: body.outputs[index] for name, body in node.bodies.items()}
        column = [(bodies[name].states[tensor], tensor) for name, tensor in tensors.items()]
        state: State | None = column[0][0]
        for of_branch, tensor in column:
            state = None if state is None else _join(state, of_branch, tensor)
        if state is None:
            return None
        for of_branch, tensor in column:
            if isinstance(state, Sharded) and tensor.dtype != tf.variant:
                if not is_shardable(tensor.shape, state):
                    return None
            can_become = of_branch == REPLICATED and isinstance(state, Sharded)
            if of_branch != state and not can_become:
                return None
        results.append(state)
    return Decision(inputs=tuple(states), outputs=tuple(results), bodies=bodies)


def _propagate_body(body: Graph, states: Sequence[State], symbols: Symbols) -> Sharding:
    return propagate(body, dict(zip(body.inputs, states, strict=True)), symbols, is_body=True)


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


def _can_run_alone(graph: Graph, sharding: Sharding, symbols: Symbols) -> bool:
    """Return whether every part can run a body by itself: nothing in it needs another part.

    What needs no samples is computed by every part; a part without samples can skip what needs
    them, as the shapes are known.
    """
    for node in graph.operations():
        if is_made_of_sizes(node):
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
            is_size = tensor.is_sizes and wanted == REPLICATED
            if not is_size and not _is_free(sharding.states[tensor], wanted, tensor):
                return False
    for node, decision in sharding.decisions.items():
        for tensor in node.outputs if decision.needs_samples else ():
            names = symbols_of_step(*(tensor.shape or ()))
            if tensor.shape is None or any(symbols[name].tensor.node is node for name in names):
                return False
    return True


def _is_free(state: State, wanted: State | Numbers, tensor: Tensor) -> bool:
    if isinstance(wanted, Numbers) or serves(state, wanted):
        return True
    if state != REPLICATED or not isinstance(wanted, Sharded) or tensor.dtype == tf.variant:
        return False
    # Blocks are cut out of a shape of which every part knows the numbers.
    names = symbols_of(*(tensor.shape or ()))
    return wanted.outer == 1 or names <= {"B"} | symbols_of(wanted.rows)


def _decide_row_loop(node: Node, states: Sequence[State]) -> Decision | None:
    """Return what the parts compute of a loop over rows: every part runs the rounds of its rows.

    ::

        one device    i = 0 .. n - 1               part 1 of (4, 3) rows    i = 4, 5, 6
                      read(list, i)                                         read(own list, i - 4)

    A counter counts rows of the whole batch in every part, so that whatever a round computes of it
    is what one device computes. Lists of rows have the rows of the part.
    """
    loop = node.row_loop
    # XLA makes lists of a size that is known when it compiles.
    if loop is None or node.xla:
        return None
    by_role = list(zip(loop.roles, states, strict=True))
    # What is split: the rows of its lists, or those of the batch.
    lists = (s for role, s in by_role if role in _LISTS and isinstance(s, Sharded) and s.axis == 0)
    split = next(lists, FIRST)
    inner = rows_per_sample(loop.count, split)
    if inner is None:
        return None
    begin, count = split.before_part * inner, split.in_part * inner
    inputs: list[State | Numbers] = []
    held: list[State] = []
    lengths: dict[int, Size] = {}
    for index, (role, held_before) in enumerate(by_role):
        state: State = REPLICATED
        if role is Role.SUM:
            state = SUM
        elif role in _LISTS and (role is not Role.READ or held_before == split):
            # What all parts have is read at the row of the whole batch.
            state = split
        is_new = isinstance(held_before, Unset) and role in (Role.WRITTEN, Role.PUSHED)
        if node.inputs[index].dtype == tf.variant and held_before != state and not is_new:
            return None
        if role is Role.WRITTEN and isinstance(held_before, Unset):
            lengths[index] = count
        inputs.append(Numbers((begin,)) if role is Role.COUNTER else state)
        held.append(state)
    body, condition = node.bodies["body"], node.bodies["cond"]
    inside, test = replicated_sharding(body), replicated_sharding(condition)
    for tensors in (body.inputs, body.outputs):
        inside.states |= dict(zip(tensors, held, strict=True))
    test.states |= dict(zip(condition.inputs, held, strict=True))
    for inner_node, index in loop.at_rows.items():
        if isinstance(held[index], Sharded):
            inside.decisions[inner_node] = Decision(
                inputs=(REPLICATED,) * len(inner_node.inputs),
                outputs=(REPLICATED,) * len(inner_node.outputs),
                lower=functools.partial(_lower_at_own_row, begin),
            )
    for decisions, nodes, number in (
        (inside.decisions, loop.made, count),
        (test.decisions, loop.tests, begin + count),
    ):
        inputs_of_node = (REPLICATED, Numbers((number,)))
        for inner_node in nodes:
            decisions[inner_node] = Decision(inputs=inputs_of_node, outputs=(REPLICATED,))
    # A counter behind the loop is that of the last rows.
    outputs = tuple(
        Partial("max") if role is Role.COUNTER and not tensor.is_sizes else state
        for role, tensor, state in zip(loop.roles, node.outputs, held, strict=True)
    )
    return Decision(
        inputs=tuple(inputs),
        outputs=outputs,
        bodies={"body": inside, "cond": test},
        list_lengths=lengths,
    )


def replicated_sharding(graph: Graph) -> Sharding:
    """Return the sharding of a body that runs as it is."""
    tensors = [*graph.inputs, *(tensor for node in graph for tensor in node.outputs)]
    return Sharding(states=dict.fromkeys(tensors, REPLICATED))


def _lower_at_own_row(
    begin: Size, builder: FunctionBuilder, node: Node, inputs: Sequence[str]
) -> Sequence[str]:
    """Read or write a list of the part's rows at a row of the whole batch."""
    dtype = node.inputs[1].dtype
    own = builder.op("Sub", [inputs[1], builder.number(begin, dtype)], {"T": dtype})
    return builder.copy(node.op, node.name, [inputs[0], *own, *inputs[2:]], node.attrs)


def is_row_wise(function: Callable[..., Sequence[Any]], specs: Sequence[tf.TensorSpec]) -> bool:
    """Return whether a function of a batch computes each row of its results from that row alone.

    Such a function gives the same rows whichever others it is given. What is known of the states of
    tensors proves it: nothing is joined, no number of the batch is read, and no operation is
    replaced by one that knows where its rows are.
    """
    try:
        step = shard_step(trace_step(function, specs, [0] * len(specs), autograph=False))
    # Then it stays as it is: whoever asks can do without an answer, and not without the function.
    except Exception as error:
        _LOG.debug("a function of a batch is not partitioned: %s", error)
        return False
    if not all(_is_row_wise(step, node) for node in step.nodes):
        return False
    states = step.sharding.states
    return all(
        states.get(tensor) == FIRST and tensor.shape and tensor.shape[0] == BATCH
        for tensor in step.graph.outputs
    )


def _is_row_wise(step: ShardedStep, node: Node) -> bool:
    """Return whether a node computes rows from the same rows, or is the same for all batches."""
    sharding = step.sharding
    decision = sharding.decisions.get(node)
    is_replaced = decision is not None and decision.lower is not None
    if (
        node.has_side_effect
        or node.bodies
        or node.op in LOOPS | CONDITIONS
        or (is_replaced and node.op not in _SAME_FOR_ROWS)
        or any(True for _ in symbol_sources(sharding, node, step.inference.symbols))
    ):
        return False
    for tensor, request in requests_of(sharding, node):
        state = sharding.states.get(tensor, REPLICATED)
        if isinstance(request, Numbers):
            if not symbols_of(*request.sizes) <= symbols_of(FIRST.in_part):
                return False
        elif tensor.is_sizes:
            if symbols_of(*(tensor.value or ())):
                return False
        elif isinstance(state, Sharded):
            if state != request or state.rows != BATCH:
                return False
        elif state != REPLICATED:
            return False
    return True
