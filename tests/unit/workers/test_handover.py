"""The output of a new chief continues that of the one before."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from evener.workers.output import Console, Continuation, continuation

LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"\n"]), max_size=12)


class Written:
    """A stream that keeps what is written to it."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, content: bytes) -> None:
        self.lines.append(content)

    def flush(self) -> None:
        pass


def shown_of(before: list[bytes], own: list[bytes], num_after: int) -> list[bytes]:
    """Return what appears if worker 0 dies and worker 1 prints its last lines afterwards."""
    stream = Written()
    console = Console(stream, Written())
    console.set_chief((0, 0))
    for line in before:
        console.line((0, 0), "stdout", line)
    for line in own[: len(own) - num_after]:
        console.line((1, 0), "stdout", line)
    console.set_chief((1, 0))
    for line in own[len(own) - num_after :]:
        console.line((1, 0), "stdout", line)
    return stream.lines


@given(st.integers(0, 20), st.integers(0, 20))
def test_different_lines_appear_exactly_once(num_before: int, num_after: int) -> None:
    own = [b"%d\n" % number for number in range(20)]
    assert shown_of(own[:num_before], own, num_after) == own


@example([b"\n", b"a\n", b"\n"], 1, 0)
@given(LINES, st.integers(0, 12), st.integers(0, 12))
def test_no_line_is_lost_where_lines_repeat(
    own: list[bytes], num_before: int, num_after: int
) -> None:
    shown = shown_of(own[:num_before], own, min(num_after, len(own)))
    assert is_within(own, shown)


def is_within(lines: list[bytes], longer: list[bytes]) -> bool:
    """Return whether the lines appear in their order among others."""
    left = iter(longer)
    return all(line in left for line in lines)


def test_other_lines_appear_from_the_handover_on() -> None:
    assert continuation([b"a", b"b"], [b"x", b"y"]) == Continuation()
    assert shown_of([b"a\n"], [b"x\n", b"y\n"], 1) == [b"a\n", b"y\n"]


def test_a_line_that_was_not_expected_ends_the_search_for_expected_ones() -> None:
    assert shown_of([b"a\n", b"b\n", b"c\n"], [b"a\n", b"x\n", b"b\n"], 2) == [
        b"a\n",
        b"b\n",
        b"c\n",
        b"x\n",
        b"b\n",
    ]
