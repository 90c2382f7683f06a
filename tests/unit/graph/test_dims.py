"""Symbolic sizes calculate as the numbers that they stand for."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from evener.graph.dims import (
    BATCH,
    Dim,
    divide,
    evaluate,
    has_batch,
    per_sample,
    product,
    symbol,
    symbols_of,
)

NAMES = ("B", "T", "s1")
T = symbol("T")
VALUES = st.fixed_dictionaries({name: st.integers(1, 12) for name in NAMES})
MONOMIALS = st.lists(st.sampled_from(NAMES), max_size=3).map(lambda names: tuple(sorted(names)))
TERMS = st.dictionaries(MONOMIALS, st.integers(-6, 6), max_size=4)


def made(terms: dict[tuple[str, ...], int]) -> Any:
    """A size from sums and products of symbols alone."""
    total: Any = 0
    for monomial, factor in terms.items():
        total = product([symbol(name) for name in monomial]) * factor + total
    return total


SIZES = TERMS.map(made)


@settings(max_examples=100)
@given(SIZES, SIZES, VALUES)
def test_arithmetic_is_that_of_the_numbers(a: Any, b: Any, values: dict[str, int]) -> None:
    x, y = evaluate(a, values), evaluate(b, values)
    assert evaluate(a + b, values) == x + y
    assert evaluate(a * b, values) == x * y
    assert evaluate(a - b, values) == x - y
    assert evaluate(-a, values) == -x
    assert evaluate(product([a, b, a, 2]), values) == 2 * x * y * x


@settings(max_examples=100)
@given(SIZES, SIZES)
def test_equal_polynomials_are_equal_however_they_were_made(a: Any, b: Any) -> None:
    for left, right in ((a + b, b + a), (a * b, b * a), ((a - b) + b, a), (a * 2, a + a)):
        assert left == right
        assert hash(left) == hash(right)
    assert (a == b) == (a - b == 0)


@settings(max_examples=100)
@given(SIZES)
def test_a_size_without_symbols_is_a_number(size: Any) -> None:
    difference = size + 3 - size
    assert (difference, type(difference)) == (3, int)
    assert isinstance(size, int) == (not symbols_of(size))
    if isinstance(size, Dim):
        assert 0 not in size.terms.values()


@settings(max_examples=100)
@given(SIZES, st.one_of(st.integers(-4, 4), MONOMIALS.map(lambda m: made({m: 2}))), VALUES)
def test_division_is_exact_or_refused(size: Any, divisor: Any, values: dict[str, int]) -> None:
    quotient = divide(size, divisor)
    if quotient is not None:
        assert quotient * divisor == size
        assert evaluate(quotient, values) * evaluate(divisor, values) == evaluate(size, values)
    if divisor != 0:
        assert divide(size * divisor, divisor) == size
    if size != 0:
        assert divide(size, size) == 1
        assert divide(size, 0) is None


@pytest.mark.parametrize(
    ("size", "divisor", "quotient"),
    [
        (12, 4, 3),
        (12, 5, None),
        (0, 5, 0),
        (0, BATCH, 0),
        (5, BATCH, None),
        (BATCH, 2, None),
        (BATCH * 6, 2, BATCH * 3),
        (BATCH * 6, BATCH * -3, -2),
        (BATCH * T + BATCH, BATCH, T + 1),
        (BATCH * T + T, BATCH, None),
        (BATCH * BATCH, BATCH, BATCH),
        (BATCH, BATCH * BATCH, None),
        (BATCH + 1, BATCH + 1, 1),
        ((BATCH + 1) * 2, BATCH + 1, None),
        (BATCH * T, T * BATCH, 1),
    ],
)
def test_quotients(size: Any, divisor: Any, quotient: Any) -> None:
    assert divide(size, divisor) == quotient


def test_floor_division_raises_where_a_rest_is_left() -> None:
    assert BATCH * 4 // 2 == BATCH * 2
    with pytest.raises(ValueError, match="does not divide by 3"):
        BATCH * 4 // 3


@pytest.mark.parametrize(
    ("size", "rows"),
    [
        (BATCH, 1),
        (BATCH * 3, 3),
        (BATCH * T * 3, T * 3),
        (BATCH * T + BATCH * 2, T + 2),
        (BATCH + 1, None),
        (BATCH * BATCH, None),
        (T, None),
        (7, None),
    ],
)
def test_rows_of_a_sample(size: Any, rows: Any) -> None:
    assert per_sample(size) == rows


@settings(max_examples=50)
@given(SIZES, VALUES)
def test_a_size_is_evaluated_in_any_numbers(size: Any, values: dict[str, int]) -> None:
    """As `evaluate` is used in graphs: with a 1 of the values' kind."""

    class Number(float):
        """Refuses numbers of other kinds on its left."""

    fractions = {name: Number(number) for name, number in values.items()}
    assert math.isclose(evaluate(size, fractions, Number(1)), evaluate(size, values))


@settings(max_examples=50)
@given(SIZES, VALUES)
def test_symbols_are_those_that_matter(size: Any, values: dict[str, int]) -> None:
    names = symbols_of(size)
    assert names <= set(NAMES)
    others = {name: number if name in names else -1000 for name, number in values.items()}
    assert evaluate(size, others) == evaluate(size, values)
    assert has_batch(size) == ("B" in names)


def test_sizes_are_no_numbers() -> None:
    assert BATCH != 1
    assert BATCH != "B"
    assert symbol("B") == BATCH
    assert {BATCH, symbol("B"), T} == {BATCH, T}
    assert 5 - BATCH == BATCH * -1 + 5
    assert 2 + BATCH * 3 == 3 * BATCH + 2


def test_a_size_is_read_by_people() -> None:
    assert repr(BATCH * 3) == "3*B"
    assert repr(BATCH * T) == "B*T"
    assert sorted(repr(BATCH + 2).split(" + ")) == ["2", "B"]
