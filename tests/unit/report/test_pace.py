"""Speed and time left, from looks at the clock."""

from __future__ import annotations

from evener.report.pace import Look, Pace


def look(seconds: float, num_steps: int, *samples: int) -> Look:
    return Look(seconds=seconds, num_steps=num_steps, samples=samples or (0,))


def test_nothing_is_known_before_two_looks() -> None:
    pace = Pace()
    assert not pace.has_begun and pace.rates() == ()
    assert pace.epoch_rate(look(1, 1)) is None and pace.seconds_left(look(1, 1), 5) is None
    pace.look(look(10, 1, 64))
    assert pace.has_begun and pace.rates() == ()
    assert pace.seconds_left(look(11, 1, 64), 5) is None


def test_the_rate_is_that_of_the_last_looks_only() -> None:
    pace = Pace()
    for second in range(8):
        pace.look(look(second, second, 10 * second, 0))
    for second in range(8, 20):
        pace.look(look(second, second, 70, 100 * (second - 7)))
    assert pace.rates() == (0.0, 100.0)


def test_the_rate_of_an_epoch_begins_with_the_epoch_or_the_first_look() -> None:
    pace = Pace()
    pace.begin_epoch(look(0, 0, 0, 0))
    pace.look(look(50, 1, 64, 0))
    assert pace.epoch_rate(look(52, 3, 164, 100)) == 100
    pace.begin_epoch(look(100, 3, 164, 100))
    assert pace.epoch_rate(look(101, 4, 164, 130)) == 30


def test_time_left_counts_from_the_first_look() -> None:
    pace = Pace()
    pace.look(look(50, 1))
    assert pace.seconds_left(look(60, 6), 10) == 20
    assert pace.seconds_left(look(60, 6), -3) == 0
