"""Servers and what passes through them, against tables worked out by hand."""

from __future__ import annotations

from simulation.activities import Activity, ActivityKind, Server, Span, Use, run

GPU = Server("compute", 0)
OUT, INTO_1, INTO_2 = Server("out", 0), Server("in", 1), Server("in", 2)


def activity(
    *uses: tuple[Server, float],
    needs: tuple[int, ...] = (),
    latency: float = 0.0,
    kind: ActivityKind = "send",
) -> Activity:
    return Activity(
        kind=kind,
        what="",
        needs=needs,
        uses=tuple(Use(server, seconds) for server, seconds in uses),
        device=0,
        latency_seconds=latency,
    )


def test_what_uses_one_device_runs_one_after_the_other() -> None:
    two = [activity((GPU, 2.0), kind="forward"), activity((GPU, 3.0), kind="forward")]
    assert run(two) == [Span(0.0, 2.0), Span(2.0, 5.0)]


def test_an_activity_waits_for_all_that_it_needs_and_for_their_latency() -> None:
    first = activity((GPU, 2.0), kind="forward")
    sent = activity((OUT, 1.0), needs=(0,), latency=0.5)
    last = activity((Server("compute", 1), 1.0), needs=(0, 1), kind="forward")
    assert run([first, sent, last]) == [Span(0.0, 2.0), Span(2.0, 3.5), Span(3.5, 4.5)]


def test_a_server_that_is_busy_holds_back_one_transfer_and_not_those_to_others() -> None:
    other = activity((INTO_2, 5.0))
    to_1 = activity((OUT, 1.0), (INTO_1, 1.0))
    to_2 = activity((OUT, 1.0), (INTO_2, 1.0))
    again_to_1 = activity((OUT, 1.0), (INTO_1, 1.0))
    assert run([other, to_1, to_2, again_to_1]) == [
        Span(0.0, 5.0),
        Span(0.0, 1.0),
        Span(1.0, 6.0),
        Span(2.0, 3.0),
    ]


def test_the_slowest_server_on_the_way_decides() -> None:
    assert run([activity((OUT, 1.0), (INTO_1, 4.0))]) == [Span(0.0, 4.0)]
    assert run([activity((OUT, 4.0), (INTO_1, 1.0))]) == [Span(0.0, 4.0)]


def test_what_comes_first_is_taken_first_whatever_was_added_first() -> None:
    slow = activity((GPU, 3.0), kind="forward")
    quick = activity((Server("compute", 1), 1.0), kind="forward")
    late, early = activity((INTO_1, 5.0), needs=(0,)), activity((INTO_1, 5.0), needs=(1,))
    times = run([slow, quick, late, early])
    assert times[3] == Span(1.0, 6.0)
    assert times[2] == Span(6.0, 11.0)


def test_what_takes_no_time_waits_for_nobody() -> None:
    times = run([activity((OUT, 5.0)), activity((OUT, 0.0)), activity(needs=(1,))])
    assert times[1:] == [Span(0.0, 0.0), Span(0.0, 0.0)]
