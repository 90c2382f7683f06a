from __future__ import annotations

import pytest

from evener.report.page import MOST_POINTS, chart, thinned, ticks


def made(points: list[tuple[float, float | None]], **more: object):
    return chart("loss", [("loss", points)], seconds=10.0, text=str, **more)  # type: ignore[arg-type]


def test_a_line_runs_from_corner_to_corner() -> None:
    found = made([(0.0, 0.0), (5.0, 1.0), (10.0, 2.0)])
    assert found is not None
    assert found.lines[0].path == "M0 200 L500 100 L1000 0"
    assert [(tick.percent, tick.text) for tick in found.y_ticks][-1] == (0.0, "2.0")


def test_where_nothing_is_known_the_line_has_a_gap() -> None:
    found = made([(0.0, 1.0), (5.0, None), (10.0, 1.0)])
    assert found is not None
    assert found.lines[0].path == "M0 0 M1000 0"
    assert found.lines[0].last == "1.0"


def test_a_single_value_is_drawn_and_none_is_no_chart() -> None:
    found = made([(5.0, 3.0)], from_zero=False)
    assert found is not None
    assert found.lines[0].path.endswith("h0")
    assert made([(0.0, None)]) is None
    assert made([]) is None


def test_long_series_are_thinned_by_their_means() -> None:
    points = [(float(k), float(k % 2)) for k in range(10_000)]
    found = thinned(points)
    assert len(found) <= MOST_POINTS
    assert found[0][1] == pytest.approx(0.5)


@pytest.mark.parametrize(("low", "high"), [(0, 1e-9), (0, 7e12), (-3, 5), (2, 2), (0.1, 0.11)])
def test_ticks_are_within_their_range(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 1 <= len(found) <= 6
    assert all(low - 1e-12 <= tick <= high * (1 + 1e-9) for tick in found)
