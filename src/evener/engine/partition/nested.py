"""Loops and conditions in a function: their bodies become functions, for a part or for all.

A body uses numbers that it is not given in the traced step, such as the samples of its part. They
become further arguments, which a loop hands through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from evener._tf_private import graphs
from evener.engine.partition.function_arguments import TensorArgument
from evener.engine.partition.functions import FunctionBuilder
from evener.engine.partition.no_samples import add_guarded, extra_arguments
from evener.engine.partition.values import Values
from evener.engine.sharding.bodies import is_made_of_sizes
from evener.engine.trace.functional import CONDITIONS, LOOPS, num_leading
from evener.graph.nodes import Graph, Node
from evener.ops.decision import Decision, Sharding
from evener.ops.states import REPLICATED, Numbers, State


def add_functional(
    builder: FunctionBuilder, node: Node, inputs: Sequence[str], decision: Decision
) -> Sequence[str]:
    """Add a loop or a condition that every part runs.

    Args:
        builder: Function.
        node: Loop or condition.
        inputs: References to its inputs.
        decision: States of its inputs and outputs, and in its bodies.
    """
    states = [REPLICATED if isinstance(state, Numbers) else state for state in decision.inputs]
    given = list(inputs)
    for index, length in decision.list_lengths.items():
        numbers = [given[index], builder.number(length, tf.int32)]
        given[index] = builder.op("TensorListResize", numbers, {})[0]
    inputs = given
    if node.op in LOOPS:
        return add_loop(builder, node, inputs, decision.bodies, states)
    states = states[num_leading(node) :]
    return add_condition(builder, node, inputs, decision.bodies, states, decision.outputs)


def add_loop(
    builder: FunctionBuilder,
    node: Node,
    inputs: Sequence[str],
    shardings: Mapping[str, Sharding],
    states: Sequence[State],
) -> Sequence[str]:
    """Add a loop to a function.

    Args:
        builder: The function.
        node: The loop.
        inputs: References to its arguments.
        shardings: The states in its body and in its condition.
        states: The states of its arguments.
    """
    made = {
        name: _build(builder, graph, shardings[name], states, states if name == "body" else None)
        for name, graph in node.bodies.items()
    }
    extra = extra_arguments(made.values(), len(inputs))
    for name, function in made.items():
        function.end_with(extra)
        if name == "body":
            for argument in extra:
                reference = function.arguments[argument]
                function.output(reference, function.dtype_of(reference))
        builder.include(function)
    numbers = [builder.number_argument(argument) for argument in extra]
    dtypes = [t.dtype for t in node.inputs]
    attrs: dict[str, Any] = {
        "T": graphs.type_list([*dtypes, *(builder.inference.dtype_of(a.name) for a in extra)]),
        "cond": graphs.function_reference(made["cond"].name),
        "body": graphs.function_reference(made["body"].name),
        "output_shapes": graphs.unknown_shapes(len(inputs) + len(extra)),
        "parallel_iterations": node.attrs["parallel_iterations"],
    }
    outputs = builder.op("StatelessWhile", [*inputs, *numbers], attrs, private=graphs.LOWERED)
    return outputs[: len(inputs)]


def add_condition(
    builder: FunctionBuilder,
    node: Node,
    inputs: Sequence[str],
    shardings: Mapping[str, Sharding],
    states: Sequence[State],
    results: Sequence[State],
) -> Sequence[str]:
    """Add a condition to a function.

    Args:
        builder: The function.
        node: The condition.
        inputs: References to what chooses the branch, and to its arguments.
        shardings: The states in its branches.
        states: The states of its arguments.
        results: The states in which all branches give their results.
    """
    first = num_leading(node)
    made = {
        name: _build(builder, graph, shardings[name], states, results)
        for name, graph in node.bodies.items()
    }
    extra = extra_arguments(made.values(), len(inputs) - first)
    for function in made.values():
        function.end_with(extra)
        builder.include(function)
    numbers = [builder.number_argument(argument) for argument in extra]
    dtypes = [t.dtype for t in node.inputs[first:]]
    attrs: dict[str, Any] = {
        "Tin": graphs.type_list([*dtypes, *(builder.inference.dtype_of(a.name) for a in extra)]),
        "Tout": graphs.type_list([t.dtype for t in node.outputs]),
        "output_shapes": graphs.unknown_shapes(len(node.outputs)),
    }
    if "then_branch" in node.bodies:
        for name, function in made.items():
            attrs[name] = graphs.function_reference(function.name)
        attrs["Tcond"] = node.inputs[0].dtype
        op = "StatelessIf"
    else:
        attrs["branches"] = graphs.function_references(
            [function.name for function in made.values()]
        )
        op = "StatelessCase"
    return builder.op(op, [*inputs, *numbers], attrs, private=graphs.LOWERED)


def copy_functional(builder: FunctionBuilder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
    """Add a loop or a condition that is computed once, of all samples."""
    shardings = {}
    for name, graph in node.bodies.items():
        tensors = [*graph.inputs, *(tensor for inner in graph for tensor in inner.outputs)]
        shardings[name] = Sharding(states=dict.fromkeys(tensors, REPLICATED))
    states = [REPLICATED] * (len(inputs) - num_leading(node))
    if node.op in LOOPS:
        return add_loop(builder, node, inputs, shardings, states)
    results = [REPLICATED] * len(node.outputs)
    return add_condition(builder, node, inputs, shardings, states, results)


def lowered(builder: FunctionBuilder, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a loop or condition whose body may run on several devices.

    TensorFlow makes those of functions with ``jit_compile=True`` for one device, at any depth.

    Args:
        builder: Function that has the operation; copies of the bodies are included in it.
        attrs: Attributes as they were traced.
    """
    return {**_with_lowered_bodies(builder, attrs), **graphs.LOWERED}


def _with_lowered_bodies(builder: FunctionBuilder, attrs: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in attrs.items():
        copy = graphs.AttrValue()
        copy.CopyFrom(value)
        for reference in [copy.func] if copy.HasField("func") else copy.list.func:
            reference.name = _lowered_body(builder, reference.name)
        found[key] = copy
    return found


def _lowered_body(builder: FunctionBuilder, name: str) -> str:
    body = FunctionBuilder("body", inference=builder.inference)
    unique_name = body.name
    body.definition.CopyFrom(graphs.function_definition(name))
    body.definition.signature.name = unique_name
    for node in body.definition.node_def:
        is_functional = node.op in LOOPS or node.op in CONDITIONS
        change = lowered if is_functional else _with_lowered_bodies
        for key, value in change(body, node.attr).items():
            node.attr[key].CopyFrom(value)
    builder.include(body)
    return unique_name


def _build(
    parent: FunctionBuilder,
    graph: Graph,
    sharding: Sharding,
    states: Sequence[State],
    results: Sequence[State] | None,
) -> FunctionBuilder:
    """Make the function of a body."""
    builder = FunctionBuilder("body", inference=parent.inference)
    builder.may_be_on_cpu = parent.may_be_on_cpu
    references = {
        tensor: builder.argument(TensorArgument(tensor, state), tensor.dtype)
        for tensor, state in zip(graph.inputs, states, strict=True)
    }
    values = Values(sharding, parent.inference, builder, references, is_body=True)
    arguments = {tensor.node for tensor in graph.inputs}
    names: dict[Node, str] = {}
    for node in graph:
        if node in arguments or node.op == "Const" or is_made_of_sizes(node):
            continue
        builder.origin = node.source
        decision = sharding.decisions.get(node)
        wanted = decision.inputs if decision is not None else [REPLICATED] * len(node.inputs)
        inputs = [*map(values.get, node.inputs, wanted)]
        if decision is not None and decision.needs_samples:
            outputs = add_guarded(builder, node, inputs, decision)
        elif decision is not None and decision.lower is not None:
            outputs = decision.lower(builder, node, inputs)
        elif decision is not None and decision.bodies:
            outputs = add_functional(builder, node, inputs, decision)
        elif node.bodies:
            outputs = copy_functional(builder, node, inputs)
        else:
            after = [names[before] for before in node.after if before in names]
            outputs = builder.copy(node.op, node.name, inputs, node.attrs, after=after)
            if node.is_stateful:
                names[node] = builder.last_name
        references.update(zip(node.outputs, outputs, strict=True))
    for index, tensor in enumerate(graph.outputs):
        wanted_state = sharding.states[tensor] if results is None else results[index]
        builder.output(values.get(tensor, wanted_state), tensor.dtype)
    return builder
