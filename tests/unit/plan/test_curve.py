"""Curves of seconds by samples."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evener.errors import ProfileError
from evener.profile import Curve

CURVE = Curve(((2, 1.0), (4, 3.0), (8, 4.0)))


@pytest.mark.parametrize(
    ("samples", "seconds"),
    [
        (0, 0.0),
        (-1, 0.0),
        (0.5, 1.0),
        (2, 1.0),
        (3, 2.0),
        (4, 3.0),
        (6, 3.5),
        (8, 4.0),
        # On with the slope of the last part, 1/4.
        (16, 6.0),
    ],
)
def test_a_curve_is_linear_between_points(samples: float, seconds: float) -> None:
    assert CURVE(samples) == seconds


def test_one_point_is_taken_for_a_line_through_zero_beyond_it() -> None:
    curve = Curve(((4, 1.0),))
    assert [curve(samples) for samples in (1, 4, 8)] == [1.0, 1.0, 2.0]


def test_a_measurement_that_falls_is_raised() -> None:
    assert Curve(((1, 2.0), (2, 1.0), (3, 4.0))).points == ((1, 2.0), (2, 2.0), (3, 4.0))


def test_scaling_and_adding_curves() -> None:
    assert CURVE.scaled(0.5).points == ((2, 0.5), (4, 1.5), (8, 2.0))
    assert Curve.total([CURVE, Curve(((3, 1.0), (5, 2.0)))]).points == (
        (2, 2.0),
        (3, 3.0),
        (4, 4.5),
        (5, 5.25),
        # The second goes on with half a second for each sample.
        (8, 4.0 + 3.5),
    )


@pytest.mark.parametrize(
    "points",
    [
        (),
        ((0, 1.0),),
        ((-1, 1.0),),
        ((2, 1.0), (1, 2.0)),
        ((1, 1.0), (1, 2.0)),
        ((1, -1.0),),
        ((1, math.nan),),
        ((math.inf, 1.0),),
        ((1, math.inf),),
    ],
)
def test_points_that_make_no_curve(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ProfileError, match="PROF-001") as caught:
        Curve(points)
    assert str(list(points)) in caught.value.what


seconds = st.floats(0, 100)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    samples = sorted(draw(st.sets(st.integers(1, 50), min_size=1, max_size=5)))
    return Curve(tuple((count, draw(seconds)) for count in samples))


@given(curves(), st.floats(0, 200), st.floats(0, 200))
def test_a_curve_never_falls(curve: Curve, samples: float, other: float) -> None:
    low, high = sorted((samples, other))
    assert curve(low) <= curve(high) + 1e-9


@given(st.lists(curves(), min_size=1, max_size=4), st.integers(1, 200))
def test_a_total_is_the_sum_between_and_at_all_points(found: list[Curve], samples: int) -> None:
    most = min(curve.points[-1][0] for curve in found)
    least = max(curve.points[0][0] for curve in found)
    if least <= samples <= most:
        assert Curve.total(found)(samples) == pytest.approx(sum(curve(samples) for curve in found))
