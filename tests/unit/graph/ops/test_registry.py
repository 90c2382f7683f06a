"""The table of operations: each fact once, and what every rule takes for every input."""

from __future__ import annotations

import pytest
import tensorflow as tf

from evener._tf_private import graphs
from evener.graph.nodes import Node, Tensor
from evener.graph.ops.registry import (
    OPERATIONS,
    Trait,
    has_trait,
    operation,
    rule,
    shape_rule,
)
from evener.graph.ops.states import (
    FIRST,
    PARTIALS,
    REPLICATED,
    ROWS,
    SUM,
    SUMS,
    WHOLE,
    Decision,
    Partial,
    ShardingRule,
    State,
)
from evener.partition.shard import decide

FIELDS = ("rule", "partial_rule", "inside_rule")
TABLES = [
    {op: getattr(known, field) for op, known in OPERATIONS.items() if getattr(known, field)}
    for field in FIELDS
]
RULES, PARTIAL_RULES, _ = TABLES
# What the definitions call the dtype of a size, a position, an axis or a count.
NUMBER_TYPES = """
Tidx Tshape Index Tperm Tdim Tmultiples Tpaddings Tlen Tshift Taxis Tblock_shape index_type
shape_dtype shape_type Tdims Tindex Tnumsegments
""".split()
# Integers that belong to samples, as labels do, or that are rows of positions.
OF_SAMPLES = {
    ("ReverseSequence", "seq_lengths"),
    ("CudnnRNNV3", "sequence_lengths"),
    ("CudnnRNNBackpropV3", "sequence_lengths"),
    ("InTopK", "targets"),
    ("InTopKV2", "targets"),
    ("ScatterNd", "indices"),
    ("DenseBincount", "input"),
    ("CropAndResize", "box_ind"),
    ("CropAndResizeGradImage", "box_ind"),
    ("CropAndResizeGradBoxes", "box_ind"),
}


@pytest.mark.parametrize("table", TABLES, ids=["rules", "partial", "inside"])
def test_every_input_is_declared_and_numbers_are_those_of_the_whole_batch(
    table: dict[str, ShardingRule],
) -> None:
    fixed = (tf.int32.as_datatype_enum, tf.int64.as_datatype_enum)
    for op, found in table.items():
        assert len(found.inputs) == len(graphs.input_names(op)), op
        for arg, takes in zip(graphs.op_definition(op).input_arg, found.inputs, strict=True):
            is_number = arg.type in fixed or arg.type_attr in NUMBER_TYPES
            if is_number and (op, arg.name) not in OF_SAMPLES:
                assert takes == WHOLE, f"{op}: {arg.name}"


def test_there_are_numbers_among_the_inputs() -> None:
    """The test above looks at something."""
    assert len(RULES) > 250
    assert RULES["StridedSlice"].inputs == (ROWS, WHOLE, WHOLE, WHOLE)
    assert PARTIAL_RULES["Slice"].inputs == (PARTIALS, WHOLE, WHOLE)


def test_a_rule_that_says_nothing_of_an_input_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"ScatterNdNonAliasingAdd has the inputs .*updates"):
        rule("ScatterNdNonAliasingAdd", inputs=(ROWS, WHOLE))(lambda node, states: None)


def node_of(op: str, *dtypes: tf.DType, output: tf.DType = tf.float32) -> Node:
    """Return a node of an operation, whose inputs come from elsewhere."""
    sources = [Node(f"x{k}", "Placeholder", [], {}, dtypes=[d]) for k, d in enumerate(dtypes)]
    return Node("node", op, [source.outputs[0] for source in sources], {}, dtypes=[output])


@pytest.mark.parametrize("begin", [SUM, Partial("max"), FIRST])
def test_a_rule_sees_what_it_does_not_take_replicated(begin: State) -> None:
    seen: list[State] = []

    def remember(node: Node, states: list[State]) -> Decision:
        seen.extend(states)
        return Decision(inputs=tuple(states), outputs=(states[0],))

    found = ShardingRule(decide=remember, inputs=(PARTIALS, WHOLE, WHOLE))
    decision = found(node_of("Slice", tf.float32, tf.int32, tf.int32), [SUM, begin, REPLICATED])
    assert seen == [SUM, REPLICATED, REPLICATED]
    assert decision is not None
    assert decision.inputs[1] == REPLICATED


def test_a_rule_may_not_ask_for_what_it_does_not_take() -> None:
    wrong = ShardingRule(
        decide=lambda node, states: Decision(inputs=(FIRST, FIRST), outputs=(FIRST,)),
        inputs=(ROWS, WHOLE),
    )
    with pytest.raises(AssertionError):
        wrong(node_of("Reshape", tf.float32, tf.int32), [FIRST, REPLICATED])


@pytest.mark.parametrize(("dtype", "is_partial"), [(tf.float32, True), (tf.int32, False)])
def test_the_mean_of_a_partial_sum_is_partial_for_floats_alone(
    dtype: tf.DType, is_partial: bool
) -> None:
    node = node_of("Mean", dtype, tf.int32, output=dtype)
    node.inputs[0].shape, node.inputs[1].shape, node.inputs[1].value = (4,), (1,), (0,)
    decision = decide(node, [SUM, REPLICATED], {})
    assert (decision is not None) == is_partial


def test_a_partial_position_in_a_partial_sum_is_combined() -> None:
    node = node_of("Slice", tf.float32, tf.int32, tf.int32)
    decision = decide(node, [SUM, SUM, REPLICATED], {})
    assert decision is not None
    assert decision.inputs == (SUM, REPLICATED, REPLICATED)
    assert decision.outputs == (SUM,)


@pytest.mark.parametrize("takes", [SUMS, PARTIALS])
def test_tensors_in_a_list_take_the_same(takes: object) -> None:
    tensors: list[Tensor] = node_of("AddN", tf.float32, tf.float32, tf.float32).inputs
    node = Node("sum", "AddN", tensors, {"N": graphs.AttrValue(i=3)}, dtypes=[tf.float32])
    for tensor in tensors:
        tensor.shape = (2,)
    decision = PARTIAL_RULES["AddN"](node, [SUM, SUM, SUM])
    assert decision is not None
    assert decision.inputs == (SUM, SUM, SUM)


def test_every_operation_exists() -> None:
    assert len(OPERATIONS) > 350
    assert [op for op in OPERATIONS if not graphs.is_operation(op)] == []


def test_nothing_is_said_twice() -> None:
    with pytest.raises(AssertionError, match="Reshape has two entries: shape"):
        shape_rule("Reshape")(lambda table, node: None)


def test_of_unknown_operations_nothing_is_known() -> None:
    assert operation("NoSuchOperation").rule is None
    assert not has_trait(node_of("NoSuchOperation"), Trait.VIEW)
    assert has_trait(node_of("Reshape"), Trait.VIEW)
