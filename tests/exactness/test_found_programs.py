"""Programs that nobody wrote: drawn ones, those found, and faults that are put back.

Those found gave other results than one device once, reduced: one for each cause. To add one that
`make fuzz` printed, copy its lines; the last one is what is returned.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import pytest
import tensorflow as tf

from evener.graph.ops import arithmetic
from evener.graph.ops.registry import OPERATIONS
from evener.graph.ops.states import PARTIALS, Decision, Partial
from evener.partition import build, tasks
from exactness.fuzz.check import PLANS, Trial, check
from exactness.fuzz.draw import draw_trial
from exactness.fuzz.program import Instruction, Program, make_batch, make_step, make_variables
from exactness.fuzz.reduce import reduce_trial
from exactness.fuzz.worker import describe

FOUND = {
    "positions/last_step_of_a_padded_batch": """
        v0 = tf.reduce_max(n)
        v1 = x[:, v0 - 1]
    """,
    "positions/column_of_a_sum": """
        v0 = tf.reduce_sum(tf.where(m, k, 0))
        v1 = x[:, v0]
    """,
    "positions/sum_over_the_batch_at_a_sum": """
        v0 = tf.reduce_sum(tf.where(m, k, 0))
        v1 = tf.reduce_sum(x, 0)[v0]
    """,
    "positions/sum_over_the_batch_from_a_sum_on": """
        v0 = tf.reduce_sum(tf.where(m, k, 0))
        v1 = tf.reduce_sum(x, 0)[v0:]
    """,
    "counts/repeated_by_a_count": """
        v0 = tf.math.count_nonzero(k, dtype=tf.int32)
        v1 = tf.repeat(m, v0, axis=0)
    """,
    "counts/ones_by_a_count": """
        v0 = tf.reduce_sum(tf.where(m, k, 1))
        v1 = tf.ones([B, v0], tf.float64)
    """,
    "counts/tiled_by_none": """
        v0 = tf.cast(tf.reduce_mean(y), tf.int32)
        v1 = tf.tile(s, [v0])
    """,
    "counts/quotient_of_equals_that_may_be_none": """
        v0 = tf.reduce_sum(tf.cast(k > 0, tf.int32))
        v1 = v0 // v0
    """,
    "loops/gradient_of_no_rounds": """
        v0 = tf.reduce_sum(n)
        v1 = tf.while_loop(lambda j, z: j < 4, lambda j, z: [j + 1, z + x[:, j, 0] * s], [v0, s])[1]
    """,
    "fixed sizes/loop_over_rows_of_samples": """
        v0 = tf.reshape(y, [-1])
        v1 = tf.while_loop(lambda j, z: j < B, lambda j, z: [j + 1, tf.sin(z)], [0, v0])[1]
    """,
    "fixed sizes/list_whose_elements_are_unlike": """
        v0 = tf.scan(lambda total, row: total * 0.5 + row, tf.transpose(y), s)
    """,
    "integers/mean_of_a_sum": """
        v0 = tf.reduce_mean(tf.reduce_sum(q, 0))
    """,
    "integers/quotient_of_a_sum": """
        v0 = tf.raw_ops.Div(x=tf.reduce_sum(n), y=3)
    """,
    "empty parts/largest_logarithm": """
        v0 = tf.reduce_max(tf.math.log(tf.abs(y)), 0)
    """,
    "empty parts/largest_root": """
        v0 = tf.reduce_max(tf.sqrt(tf.abs(x)), 0)
    """,
    "fixed sizes/no_numbers": """
        v0 = tf.range(tf.maximum(B, 2), B * 2)
    """,
    "fixed sizes/product_of_batches": """
        v0 = tf.einsum("bij,bik->bjk", x, x)
        v1 = tf.add_n([tf.reduce_sum(v0, 0), tf.reduce_mean(v0, 0)])
    """,
    "loops/over_as_many_rows_as_the_data_says": """
        v0 = tf.cast(tf.reduce_any(m), tf.int32)
        v1 = tf.tile(s, [v0])
        v2 = tf.map_fn(lambda row: tf.reduce_sum(row) * tf.cast(q, tf.float64), v1)
    """,
    "infinite/terms_that_overflow": """
        v0 = tf.reduce_sum(x, 0) * 1e300 * 1e10
    """,
    "infinite/sum_over_one_sample_less": """
        v0 = tf.reduce_sum(y) / tf.cast(B - 1, tf.float64)
    """,
}


def program_of(name: str) -> Program:
    """Return the program of a name; it trains if its result can be made smaller."""
    lines = FOUND[name]
    pairs = (line.strip().split(" = ", 1) for line in lines.strip().splitlines())
    instructions = tuple(itertools.starmap(Instruction, pairs))
    last = (instructions[-1].name,)
    step = make_step(Program(instructions=instructions, outputs=last).source(), make_variables())
    is_float = step(*make_batch(8, 3))[last[0]].dtype == tf.float64
    return Program(
        instructions=instructions,
        outputs=last,
        # A gradient reads more of a task, and then TensorFlow's optimizer leaves it as it is.
        losses=last if is_float and not name.startswith("empty parts") else (),
        is_static=name.startswith("fixed sizes"),
    )


# Each program has two of the five plans.
CASES = [
    (name, sorted(PLANS)[(number + turn) % 5])
    for turn in (0, 2)
    for number, name in enumerate(sorted(FOUND))
]


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_equals_one_device(name: str, plan: str) -> None:
    program = program_of(name)
    trial = Trial(program=program, plan=plan, sizes=(8, 1, 2, 24), seed=3)
    verdict = check(trial)
    assert verdict.fault is None, describe(trial, str(verdict.fault))
    assert not verdict.refused
    assert not verdict.unraised
    assert verdict.compared >= 2


Patch = Callable[[pytest.MonkeyPatch], None]


def sizes_of_parts(patch: pytest.MonkeyPatch) -> None:
    """A part takes the number of a size from what it holds, although that is its own maximum."""
    for module in (tasks, build):
        patch.setattr(module, "is_known_to_parts", lambda source, state: True)


def partial_positions(patch: pytest.MonkeyPatch) -> None:
    """A slice of partial sums begins where a partial sum says."""

    def decide(node, states):
        found = {state for state in states if isinstance(state, Partial)}
        if len(found) != 1 or not isinstance(states[0], Partial):
            return None
        return Decision(inputs=tuple(states), outputs=(*found,) * len(node.outputs))

    for op in ("StridedSlice", "Slice"):
        rule = OPERATIONS[op].partial_rule
        assert rule is not None
        wrong = dataclasses.replace(rule, decide=decide, inputs=(PARTIALS,) * len(rule.inputs))
        patch.setattr(OPERATIONS[op], "partial_rule", wrong)


def means_of_integers(patch: pytest.MonkeyPatch) -> None:
    """Every part rounds its mean."""
    rule = OPERATIONS["Mean"].partial_rule
    assert rule is not None
    patch.setattr(OPERATIONS["Mean"], "partial_rule", dataclasses.replace(rule, inexact=False))


def division_by_none(patch: pytest.MonkeyPatch) -> None:
    """Every part divides its sum by a size that may be 0."""
    patch.setattr(arithmetic, "is_not_zero", arithmetic.is_count)


# The fault, and a program that was found and has it.
PUT_BACK: dict[str, tuple[Patch, str]] = {
    "sizes of parts": (sizes_of_parts, "positions/column_of_a_sum"),
    "partial positions": (partial_positions, "positions/sum_over_the_batch_from_a_sum_on"),
    "means of integers": (means_of_integers, "integers/mean_of_a_sum"),
    "division by none": (division_by_none, "infinite/sum_over_one_sample_less"),
}


@pytest.mark.parametrize("name", sorted(PUT_BACK))
def test_found_program_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_back, found = PUT_BACK[name]
    trial = Trial(program=program_of(found), plan="3", sizes=(8, 1), seed=3)
    assert check(trial).fault is None
    put_back(monkeypatch)
    assert check(trial).fault is not None


NUM_PROGRAMS = 10


@pytest.mark.parametrize("chunk", range(10))
def test_drawn_programs_equal_one_device(chunk: int) -> None:
    shared = compared = 0
    for index in range(NUM_PROGRAMS):
        trial = draw_trial(f"{chunk}:{index}")
        verdict = check(trial)
        if verdict.fault is not None:
            smaller, fault = reduce_trial(trial, verdict.fault)
            pytest.fail(describe(smaller, f"{fault.kind}, {fault.result} {fault.text}"))
        shared += verdict.shared
        compared += bool(verdict.compared)
    # Programs that one device cannot run, or that run on one device alone, show nothing.
    assert compared > NUM_PROGRAMS * 2 / 3
    assert shared > NUM_PROGRAMS / 2
