"""Speed and time left, from measurements."""

from __future__ import annotations

from evener.report.progress import ProgressMark, Throughput


def measured(seconds: float, num_steps: int, *samples: int) -> ProgressMark:
    return ProgressMark(seconds=seconds, num_steps=num_steps, samples=samples or (0,))


def test_nothing_is_known_before_two_measurements() -> None:
    throughput = Throughput()
    assert not throughput.has_started and throughput.rates() == ()
    assert (
        throughput.epoch_rate(measured(1, 1)) is None
        and throughput.seconds_left(measured(1, 1), 5) is None
    )
    throughput.add(measured(10, 1, 64))
    assert throughput.has_started and throughput.rates() == ()
    assert throughput.seconds_left(measured(11, 1, 64), 5) is None


def test_the_rate_is_that_of_the_last_measurements_only() -> None:
    throughput = Throughput()
    for second in range(8):
        throughput.add(measured(second, second, 10 * second, 0))
    for second in range(8, 20):
        throughput.add(measured(second, second, 70, 100 * (second - 7)))
    assert throughput.rates() == (0.0, 100.0)


def test_the_rate_of_an_epoch_begins_with_the_epoch_or_the_first_measurement() -> None:
    throughput = Throughput()
    throughput.start_epoch(measured(0, 0, 0, 0))
    throughput.add(measured(50, 1, 64, 0))
    assert throughput.epoch_rate(measured(52, 3, 164, 100)) == 100
    throughput.start_epoch(measured(100, 3, 164, 100))
    assert throughput.epoch_rate(measured(101, 4, 164, 130)) == 30


def test_time_left_counts_from_the_first_measurement() -> None:
    throughput = Throughput()
    throughput.add(measured(50, 1))
    assert throughput.seconds_left(measured(60, 6), 10) == 20
    assert throughput.seconds_left(measured(60, 6), -3) == 0
