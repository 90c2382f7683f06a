"""Decisions on the ends of workers, at times that the tests choose."""

from __future__ import annotations

from evener.launch.policy import Finish, Policy, Replace, Shrink

SEGFAULT = -11


def policy(num_workers: int = 3, num_restarts: int = 3) -> Policy:
    return Policy(
        tuple(range(num_workers)),
        num_restarts=num_restarts,
        error_wait_seconds=2,
        error_window_seconds=30,
    )


def test_a_job_has_finished_when_all_workers_have() -> None:
    found = policy()
    assert [found.ended(index, 0, 10) for index in range(3)] == [None, None, Finish(code=0)]


def test_a_worker_that_a_signal_ended_is_replaced_at_once() -> None:
    found = policy()
    decision = found.ended(1, SEGFAULT, 10)
    assert decision == Replace(
        index=1,
        incarnation=1,
        at=10,
        why="was ended by SIGSEGV; it is started again (1 of 3 restarts used)",
        code=SEGFAULT,
    )
    assert found.pending == (decision,)
    found.started(1, 1)
    assert found.pending == ()
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


def test_the_reason_of_the_supervisor_is_named_instead_of_its_signal() -> None:
    decision = policy().ended(1, -9, 10, "was lost: it was silent")
    assert decision.why.startswith("was lost: it was silent; it is started again")


def test_restarts_are_those_of_all_workers_together() -> None:
    found = policy(num_restarts=2)
    for index in (0, 1):
        assert isinstance(found.ended(index, SEGFAULT, 10), Replace)
        found.started(index, 1)
    why = "was ended by SIGSEGV; the job goes on without it (2 of 2 restarts used)"
    assert found.ended(2, SEGFAULT, 10) == Shrink(index=2, why=why)
    assert isinstance(found.ended(1, SEGFAULT, 10), Shrink)
    assert found.ended(0, SEGFAULT, 10) == Finish(
        code=1,
        why="worker 0 was ended by SIGSEGV, and no worker is left (2 of 2 restarts used)",
    )


def test_a_replacement_that_is_due_later_keeps_the_job_alive() -> None:
    found = policy(num_workers=2, num_restarts=1)
    assert found.ended(0, 1, 10).at == 12
    assert isinstance(found.ended(1, SEGFAULT, 10), Shrink)


def test_errors_of_all_workers_are_an_error_of_the_program() -> None:
    found = policy()
    assert [found.ended(2, 3, 10).at, found.ended(0, 3, 10).at] == [12, 12]
    assert found.ended(1, 4, 11) == Finish(code=3, failed=(2, 0))


def test_an_error_of_the_program_is_seen_after_replacements_were_started() -> None:
    found = policy()
    for index in (0, 1):
        found.ended(index, 1, 10)
        found.started(index, 1)
    assert found.ended(2, 1, 39) == Finish(code=1, failed=(0, 0))


def test_errors_far_from_each_other_are_those_of_the_workers() -> None:
    found = policy(num_workers=2)
    found.ended(0, 1, 10)
    found.started(0, 1)
    assert isinstance(found.ended(1, 1, 41), Replace)


def test_an_error_without_restarts_is_waited_for_by_the_others() -> None:
    found = policy(num_workers=2, num_restarts=0)
    assert isinstance(found.ended(0, 3, 10), Shrink)
    assert found.ended(1, 3, 10) == Finish(code=3, failed=(0, 0))


def test_the_exit_code_of_the_last_worker_is_that_of_the_job() -> None:
    found = policy(num_workers=2, num_restarts=0)
    found.ended(0, SEGFAULT, 10)
    assert found.ended(1, 3, 10).code == 3


def test_a_signal_after_the_first_has_finished_is_no_fault() -> None:
    found = policy()
    assert found.ended(0, 0, 10) is None
    assert found.ended(1, SEGFAULT, 10) is None
    assert found.ended(2, 0, 10) == Finish(code=0)


def test_an_error_at_the_end_of_the_program_is_that_of_the_job_in_any_order() -> None:
    before, after = policy(num_workers=2), policy(num_workers=2)
    before.ended(0, 5, 10)
    after.ended(1, 0, 10)
    assert before.ended(1, 0, 10) == after.ended(0, 5, 10) == Finish(code=5, failed=(0, 0))


def test_a_replacement_that_comes_too_late_does_not_count() -> None:
    found = policy(num_workers=2)
    found.ended(0, SEGFAULT, 10)
    found.started(0, 1)
    found.ended(1, 0, 11)
    assert found.ended(0, 2, 12) == Finish(code=0)


def test_a_replacement_that_took_part_counts() -> None:
    found = policy(num_workers=2)
    found.ended(0, SEGFAULT, 10)
    found.started(0, 1)
    found.joined([0, 1])
    found.ended(1, 0, 11)
    assert found.ended(0, 2, 12) == Finish(code=2, failed=(0, 1))


def test_a_replacement_that_has_not_joined_is_a_straggler_when_another_has_finished() -> None:
    found = policy(num_workers=3)
    found.joined([0, 1, 2])
    for index in (1, 2):
        found.ended(index, SEGFAULT, 10)
        found.started(index, 1)
    found.joined([0, 2])
    assert found.stragglers == ()
    found.ended(0, 0, 20)
    assert found.stragglers == (1,)
    assert found.ended(1, -9, 30, "was lost: it hangs") is None
    assert found.ended(2, 0, 31) == Finish(code=0)


def test_a_program_that_never_has_a_step_has_no_stragglers() -> None:
    found = policy(num_workers=2)
    found.ended(1, SEGFAULT, 10)
    found.started(1, 1)
    found.ended(0, 0, 20)
    assert found.stragglers == ()
