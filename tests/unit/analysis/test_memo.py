"""Answers that need each other in circles: all of them, each once, and none that is only half."""

from __future__ import annotations

from collections import Counter

import pytest

from evener.analysis.memo import RecursionSafeMemo

Names = frozenset[str]
# Who leads where; what is reachable from each is asked for.
GRAPHS = {
    "a line": {"a": "b", "b": "c", "c": ""},
    "a circle of one": {"a": "a"},
    "a circle of two": {"a": "b", "b": "a"},
    "a circle with a tail": {"a": "b", "b": "cd", "c": "b", "d": ""},
    "two circles that touch": {"a": "b", "b": "ac", "c": "d", "d": "cb"},
    "a circle in a circle": {"a": "b", "b": "c", "c": "ba", "d": "a"},
    "two ways to one": {"a": "bc", "b": "d", "c": "d", "d": ""},
}


class Reach:
    """Asks what can be reached from a node, through the questions of its neighbours."""

    def __init__(self, leads: dict[str, str], *, deepest: int = 50) -> None:
        self.leads = leads
        self.looked: Counter[str] = Counter()
        self.memo: RecursionSafeMemo[str, Names] = RecursionSafeMemo(frozenset(), deepest=deepest)

    def of(self, node: str) -> Names:
        return self.memo.get(node, lambda: self._check(node))

    def _check(self, node: str) -> Names:
        self.looked[node] += 1
        return frozenset(self.leads[node]).union(
            *(self.of(following) for following in self.leads[node])
        )


def reachable(leads: dict[str, str], node: str) -> Names:
    found, waiting = set[str](), list(leads[node])
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting += leads[current]
    return frozenset(found)


@pytest.mark.parametrize("name", GRAPHS)
def test_whoever_asks_gets_all_in_whatever_order(name: str) -> None:
    leads = GRAPHS[name]
    for first in leads:
        reach = Reach(leads)
        for node in [first, *leads, *reversed(leads)]:
            assert reach.of(node) == reachable(leads, node), (first, node)


def test_an_answer_without_a_circle_is_looked_for_once() -> None:
    reach = Reach(GRAPHS["two ways to one"])
    for node in "abcda":
        reach.of(node)
    assert reach.looked == Counter("abcd")


def test_what_was_answered_in_a_circle_is_kept_while_it_is_open_and_no_longer() -> None:
    # b is asked for twice on the way from a; its answer lacks what a alone knows.
    leads = {"a": "bcx", "b": "a", "c": "b", "x": ""}
    reach = Reach(leads)
    assert reach.of("a") == frozenset("abcx")
    assert reach.looked["b"] == 1
    assert reach.of("b") == frozenset("abcx")
    assert reach.looked["b"] == 2


def test_too_deep_is_nothing_and_does_not_end_the_rest() -> None:
    line = {str(number): str(number + 1) for number in range(9)} | {"9": ""}
    reach = Reach(line, deepest=3)
    # Three are open; what the third leads to is known, and not looked into.
    assert reach.of("0") == frozenset("123")
    assert reach.looked == Counter("012")
    assert reach.of("7") == frozenset("89")


def test_a_question_that_fails_is_open_no_more() -> None:
    circles: RecursionSafeMemo[str, int] = RecursionSafeMemo(0, deepest=5)

    def fail() -> int:
        raise ValueError("not this time")

    with pytest.raises(ValueError, match="not this time"):
        circles.get("a", fail)
    assert circles.get("a", lambda: 7) == 7
