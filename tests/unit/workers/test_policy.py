"""Decisions on the ends of workers, at times that the tests choose."""

from __future__ import annotations

import math

import pytest

from evener.workers.policy import Finish, Policy, Replace, Shrink

SEGFAULT = -11
LOST = 75


def policy(num_workers: int = 3, num_restarts: int = 3) -> Policy:
    return Policy(
        tuple(range(num_workers)),
        num_restarts=num_restarts,
        error_wait_seconds=2,
        error_window_seconds=30,
    )


# Of two workers: whether they agree on the end of the program, their exit codes, the restarts, and
# what is done at the end of each. A number is the exit code of the job.
TABLE = [
    (True, (0, 0), 3, ("", 0)),
    (True, (0, SEGFAULT), 3, ("", 0)),
    (True, (SEGFAULT, LOST), 3, ("", 0)),
    (True, (0, 5), 3, ("", 5)),
    (True, (5, 6), 3, ("", 5)),
    (False, (SEGFAULT, SEGFAULT), 3, ("replaced", "replaced")),
    (False, (LOST, 5), 3, ("replaced", "replaced")),
    (False, (5, 6), 3, ("replaced", 5)),
    # All call exit(0) at the same point.
    (False, (0, 0), 3, ("replaced", 0)),
    (False, (0, 5), 3, ("replaced", 5)),
    (False, (5, 0), 3, ("replaced", 5)),
    # One has ended with 0, and the last one is killed.
    (False, (0, SEGFAULT), 3, ("replaced", "replaced")),
    (False, (0, LOST), 3, ("replaced", "replaced")),
    (False, (SEGFAULT, 0), 3, ("replaced", "replaced")),
    (False, (0, SEGFAULT), 0, ("given up", 1)),
    (False, (0, LOST), 0, ("given up", LOST)),
    (False, (LOST, SEGFAULT), 0, ("given up", LOST)),
    (False, (SEGFAULT, SEGFAULT), 0, ("given up", 1)),
    (False, (0, 0), 0, ("given up", 0)),
    (False, (SEGFAULT, 3), 0, ("given up", 3)),
    (False, (SEGFAULT, 0), 1, ("replaced", "given up")),
    # A replacement that is due later keeps the job alive.
    (False, (1, SEGFAULT), 1, ("replaced", "given up")),
]


@pytest.mark.parametrize(("agreed", "codes", "num_restarts", "expected"), TABLE)
def test_the_ends_of_two_workers(
    agreed: bool, codes: tuple[int, int], num_restarts: int, expected: tuple[str | int, ...]
) -> None:
    found = policy(num_workers=2, num_restarts=num_restarts)
    if agreed:
        found.agreed()
    kinds = {Replace: "replaced", Shrink: "given up", type(None): ""}
    decisions = [found.ended(index, code, 10 + index) for index, code in enumerate(codes)]
    assert expected == tuple(
        decision.code if isinstance(decision, Finish) else kinds[type(decision)]
        for decision in decisions
    )


def test_a_worker_that_ends_with_0_alone_is_told_of_and_replaced_after_a_wait() -> None:
    decision = policy().ended(1, 0, 10)
    assert decision.at == 12
    assert decision.why.startswith(
        "ended with code 0 before the others came to the end of the program; it is started again"
    )
    # The reason of the supervisor is named instead of its signal.
    decision = policy().ended(1, -9, 10, "was lost: it was silent")
    assert decision.why.startswith("was lost: it was silent; it is started again")


def test_a_worker_that_is_not_started_again_since_the_others_have_ended_is_told_of() -> None:
    found = policy()
    found.ended(1, 0, 10)
    found.agreed()
    assert found.ended(0, 0, 11) is None
    why = "worker 1 ended with code 0 before the others came to the end of the program"
    assert found.ended(2, 0, 11) == Finish(code=0, why=why)


def test_a_worker_that_is_lost_is_killed_in_time_unless_it_ends_or_was_replaced() -> None:
    found = policy()
    for index in range(3):
        found.lost(index, 0, "it was silent", 20 + index)
    assert (found.next_time(), found.due(19)) == (20, {})
    assert found.due(20) == {0: "was lost: it was silent"}
    assert found.ended(1, LOST, 20).clause == "lost the other workers"
    found.started(1, 1)
    found.lost(1, 0, "it was silent", 20)
    assert found.due(30) == {2: "was lost: it was silent"}
    found.ended(2, SEGFAULT, 30)
    assert found.next_time() == 30
    found.stop()
    assert (found.next_time(), found.pending) == (math.inf, ())


def test_a_worker_that_a_signal_ended_is_replaced_at_once() -> None:
    found = policy()
    assert found.joined([0, 1, 2]) == []
    decision = found.ended(1, SEGFAULT, 10)
    assert decision == Replace(
        index=1,
        incarnation=1,
        at=10,
        clause="was ended by SIGSEGV",
        why="was ended by SIGSEGV; it is started again (1 of 3 restarts used)",
        code=SEGFAULT,
    )
    assert found.pending == (decision,)
    found.started(1, 1)
    assert found.pending == ()
    # It is told of once that it has joined.
    assert [found.joined(indices) for indices in ([0, 2], [0, 1, 2], [0, 1])] == [[], [(1, 1)], []]
    assert found.ended(1, SEGFAULT, 11).incarnation == 2


def test_workers_that_lost_the_others_are_no_error_of_the_program() -> None:
    """The only one with the state was killed: the replacements cannot catch up any more."""
    found = policy(num_restarts=5)
    decisions = [found.ended(index, code, 10 + index) for index, code in enumerate((75, -9, 75))]
    assert all(isinstance(decision, Replace) for decision in decisions)
    assert decisions[0].why.startswith("lost the other workers; it is started again")
    for index in range(3):
        found.started(index, 1)
    # Nor is the error of the one that is left: the others had none.
    assert isinstance(found.ended(1, 1, 14), Replace)


def test_restarts_are_those_of_all_workers_together() -> None:
    found = policy(num_restarts=2)
    for index in (0, 1):
        assert isinstance(found.ended(index, SEGFAULT, 10), Replace)
        found.started(index, 1)
    why = "was ended by SIGSEGV; the job goes on without it (2 of 2 restarts used)"
    assert found.ended(2, SEGFAULT, 10) == Shrink(index=2, why=why)
    assert isinstance(found.ended(1, SEGFAULT, 10), Shrink)
    assert found.ended(0, SEGFAULT, 10) == Finish(
        code=1, why="worker 0 was ended by SIGSEGV, and no worker is left (2 of 2 restarts used)"
    )


def test_errors_of_all_workers_are_an_error_of_the_program() -> None:
    found = policy()
    assert [found.ended(2, 3, 10).at, found.ended(0, 3, 10).at] == [12, 12]
    assert found.ended(1, 4, 11) == Finish(code=3, failed=(2, 0))
    found = policy(num_workers=2, num_restarts=0)
    assert isinstance(found.ended(0, 3, 10), Shrink)
    assert found.ended(1, 3, 10) == Finish(code=3, failed=(0, 0))


@pytest.mark.parametrize(("at", "is_last"), [(39, True), (41, False)])
def test_an_error_of_the_program_is_seen_after_replacements_were_started(
    at: int, is_last: bool
) -> None:
    """Errors far from each other are those of the workers."""
    found = policy()
    for index in (0, 1):
        found.ended(index, 1, 10)
        found.started(index, 1)
    decision = found.ended(2, 1, at)
    assert decision == Finish(code=1, failed=(0, 0)) if is_last else isinstance(decision, Replace)


def test_an_error_at_the_end_of_the_program_is_that_of_the_job_in_any_order() -> None:
    before, after = policy(num_workers=2), policy(num_workers=2)
    before.ended(0, 5, 10)
    before.agreed()
    after.agreed()
    after.ended(1, 0, 10)
    assert after.ended(0, 5, 10) == Finish(code=5, failed=(0, 0))
    why = "worker 0 ended with code 5"
    assert before.ended(1, 0, 10) == Finish(code=5, failed=(0, 0), why=why)


@pytest.mark.parametrize(
    ("joins", "finish"),
    [(False, Finish(code=0)), (True, Finish(code=2, failed=(0, 1)))],
)
def test_a_replacement_counts_if_it_took_part(joins: bool, finish: Finish) -> None:
    found = policy(num_workers=2)
    found.ended(0, SEGFAULT, 10)
    found.started(0, 1)
    if joins:
        found.joined([0, 1])
    found.agreed()
    found.ended(1, 0, 11)
    assert found.ended(0, 2, 12) == finish


def test_a_replacement_that_has_not_joined_is_killed_some_time_after_the_end() -> None:
    found = policy(num_workers=3)
    for index in (1, 2):
        found.ended(index, SEGFAULT, 10)
        found.started(index, 1)
    found.joined([0, 2])
    assert found.next_time() == math.inf
    found.agreed()
    found.ended(0, 0, 20)
    assert (found.next_time(), found.due(79)) == (80, {})
    assert found.due(80) == {1: "was lost: it did not end within 60 seconds of the others"}
    assert found.ended(1, -9, 80, "was lost: it hangs") is None
    assert found.ended(2, 0, 81) == Finish(code=0)
