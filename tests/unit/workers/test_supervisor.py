"""Supervised jobs with real processes and real signals, and the coordinator in their process."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evener.errors import RunError
from evener.workers import guard
from evener.workers.job import Job, job_from_environment
from evener.workers.member import Member
from evener.workers.messages import Ended, Event, Formed, Lost
from evener.workers.supervisor import (
    JobControl,
    LaunchSettings,
    WorkerCommand,
    seconds_to_end,
)
from unit.workers.conftest import StartedJob, wait_for_end

Start = Callable[..., StartedJob]
PRINT = "print('line', flush=True); print('problem', file=sys.stderr)"

# Tells its process, then waits for ever.
WAIT = "tell(os.getpid()); signal.pause()"

# Ends well after SIGUSR1. It is blocked, so it is not lost if it comes early.
MASK = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]);"
WAIT_FOR_SIGNAL = MASK + "tell(os.getpid()); signal.sigwait([signal.SIGUSR1])"
LATE_ERROR = "signal.sigwait([signal.SIGUSR1]); sys.exit('late')"


def pids_of(job: StartedJob, count: int) -> dict[int, int]:
    """Return the process of each worker that told it."""
    return {int(index): int(pid) for index, _, pid in (job.news() for _ in range(count))}


def test_the_output_of_the_chief_appears_as_it_is_and_all_is_logged(start: Start) -> None:
    job = start(PRINT, PRINT, error_wait_seconds=600)
    code, stdout, stderr = job.end()
    assert (code, stdout) == (0, "line\n")
    assert stderr == "problem\nthe coordinator has stopped\n"
    for index in (0, 1):
        log = job.log(index)
        assert log.startswith(f"--- worker {index}, incarnation 0, process ")
        assert sorted(log.splitlines()[1:]) == ["line", "problem"]


@pytest.mark.parametrize(
    ("sent", "says"),
    [(signal.SIGKILL, "was ended by SIGKILL"), (signal.SIGSTOP, "was lost: it was silent")],
)
def test_a_worker_that_is_killed_or_frozen_is_replaced(
    start: Start, sent: signal.Signals, says: str
) -> None:
    job = start(WAIT_FOR_SIGNAL, WAIT_FOR_SIGNAL)
    pids = pids_of(job, 2)
    os.kill(pids[1], sent)
    if sent == signal.SIGSTOP:
        job.lose(1, 0, 0)
        wait_for_end(pids[1])
    index, incarnation, replacement = job.news()
    assert (index, incarnation) == ("1", "1")
    job.join(0, 1)
    job.agree()
    _, stderr = job.finish(pids[0], int(replacement))
    assert f"worker 1 {says}; it is started again (1 of 3 restarts used)" in stderr
    assert "worker 1 (restart 1) computes with the others from step 8\n" in stderr
    assert job.log(1).count("--- worker 1, incarnation ") == 2


def test_a_replacement_that_hangs_before_it_joins_does_not_keep_the_job_from_ending(
    start: Start,
) -> None:
    job = start(WAIT_FOR_SIGNAL, f"if incarnation: {WAIT}\n{WAIT_FOR_SIGNAL}", grace_seconds=0.3)
    pids = pids_of(job, 2)
    job.join(0, 1)
    os.kill(pids[1], signal.SIGKILL)
    _, _, replacement = job.news()
    job.agree()
    _, stderr = job.finish(pids[0])
    assert "worker 1 was lost: it did not end within 0.3 seconds of the others" in stderr
    wait_for_end(int(replacement))


def test_the_job_goes_on_without_a_worker_when_no_restart_is_left(start: Start) -> None:
    job = start(WAIT_FOR_SIGNAL, "os.kill(os.getpid(), signal.SIGSEGV)", num_restarts=1)
    pids = pids_of(job, 1)
    message = "worker 1 was ended by SIGSEGV; the job goes on without it (1 of 1 restarts used)"
    read = ""
    while message not in read:
        read += job.process.stderr.readline()
    assert job.process.stderr.readline() == "nobody waits for worker 1\n"
    job.finish(pids[0])


def test_a_job_without_workers_fails(start: Start) -> None:
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    code, _, stderr = start(kill, kill, num_restarts=1).end()
    assert code == 1
    assert "was ended by SIGKILL, and no worker is left (1 of 1 restarts used)" in stderr


@pytest.mark.parametrize(
    ("num_workers", "error", "expected"),
    [
        (1, "raise ValueError('wrong shape')", 1),
        (3, "raise ValueError('wrong shape')", 1),
        (2, "print('wrong shape', file=sys.stderr); sys.exit(7)", 7),
    ],
)
def test_an_error_of_the_program_is_shown_once_and_nothing_is_replaced(
    start: Start, num_workers: int, error: str, expected: int
) -> None:
    code, _, stderr = start(*[error] * num_workers, error_wait_seconds=600).end()
    assert code == expected
    assert stderr.count("wrong shape\n") == 1
    assert stderr.count("Traceback") == stderr.count("ValueError: wrong shape\n")
    assert "started again" not in stderr


def test_an_error_of_one_worker_is_shown_and_the_worker_is_replaced(start: Start) -> None:
    error = """
for number in range(30):
    print("about", number, file=sys.stderr)
if not incarnation:
    raise OSError("disk of one machine")
"""
    job = start(WAIT_FOR_SIGNAL, error + WAIT_FOR_SIGNAL)
    pids = pids_of(job, 2)
    job.agree()
    _, stderr = job.finish(*pids.values())
    assert "worker 1 ended with code 1; it is started again (1 of 3 restarts used)" in stderr
    shown = [line for line in stderr.splitlines() if line.startswith("[worker 1] ")]
    assert len(shown) == 20
    assert shown[-1] == "[worker 1] OSError: disk of one machine"


def test_a_lost_worker_that_ends_by_itself_keeps_its_exit_code(start: Start) -> None:
    fail = MASK + "tell(os.getpid()); signal.sigwait([signal.SIGUSR1]); sys.exit(5)"
    job = start(fail, fail, WAIT, num_restarts=1)
    pids = pids_of(job, 3)
    for index in (0, 1):
        job.lose(index, 0, 600)
    # Events are handled in order: behind this one, both others were.
    job.lose(2, 0, 0)
    index, incarnation, _ = job.news()
    assert (index, incarnation) == ("2", "1")
    for index in (0, 1):
        os.kill(pids[index], signal.SIGUSR1)
    job.lose(2, 1, 0)
    code, _, stderr = job.end()
    assert "worker 0 ended with code 5" in stderr or "worker 1 ended with code 5" in stderr
    assert "worker 0 was lost" not in stderr
    assert code in (1, 5)


def test_news_of_the_last_incarnation_do_not_kill_the_replacement(start: Start) -> None:
    job = start(WAIT_FOR_SIGNAL, WAIT_FOR_SIGNAL, WAIT)
    pids = pids_of(job, 3)
    os.kill(pids[1], signal.SIGKILL)
    replacement = int(job.news()[2])
    job.lose(1, 0, 0)
    job.lose(2, 0, 0)
    assert job.news()[:2] == ["2", "1"]
    os.kill(replacement, 0)
    job.process.send_signal(signal.SIGTERM)
    code, _, stderr = job.end()
    assert code == 143
    assert stderr.count("worker 1 ") == 1


def test_sigterm_is_passed_on_and_workers_may_save(start: Start) -> None:
    save = """
    def save(number, frame):
        tell("saved")
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    tell(os.getpid())
    while True:
        signal.pause()
    """
    job = start(save, save)
    pids_of(job, 2)
    job.process.send_signal(signal.SIGTERM)
    assert {tuple(job.news()) for _ in range(2)} == {("0", "0", "saved"), ("1", "0", "saved")}
    assert job.end()[0] == 143


def test_workers_that_do_not_end_after_sigterm_are_killed(start: Start) -> None:
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" + WAIT
    job = start(ignore, ignore, grace_seconds=0.2)
    pids = pids_of(job, 2)
    job.process.send_signal(signal.SIGTERM)
    assert job.end()[0] == 143
    wait_for_end(*pids.values())


def test_a_second_signal_does_not_wait(start: Start) -> None:
    note = "signal.signal(signal.SIGINT, signal.SIG_IGN);"
    note += "signal.signal(signal.SIGTERM, lambda *_: tell('asked'));"
    job = start(note + "tell(os.getpid())" + "\nwhile True: signal.pause()", grace_seconds=600)
    pids_of(job, 1)
    job.process.send_signal(signal.SIGTERM)
    assert job.news()[2:] == ["asked"]
    job.process.send_signal(signal.SIGINT)
    assert job.end()[0] == 130


def test_ctrl_c_ends_with_130_and_the_traceback_of_the_chief(start: Start) -> None:
    job = start(WAIT, WAIT)
    pids = pids_of(job, 2)
    job.process.send_signal(signal.SIGINT)
    code, _, stderr = job.end()
    assert code == 130
    assert stderr.count("KeyboardInterrupt") == 1
    wait_for_end(*pids.values())


CHILD = "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']);"


def test_nothing_is_left_behind_if_the_supervisor_is_killed(start: Start) -> None:
    job = start(CHILD + "tell(os.getpid(), child.pid); signal.pause()", WAIT)
    pids = [int(pid) for words in (job.news(), job.news()) for pid in words[2:]]
    assert len(pids) == 3
    job.process.kill()
    # Its pipes are closed when the last process that holds them has ended.
    job.process.communicate()
    wait_for_end(*pids)


def test_processes_that_a_worker_leaves_behind_are_killed(start: Start) -> None:
    job = start(CHILD + "tell(child.pid); os._exit(0)")
    child = int(job.news()[2])
    assert job.end()[0] == 0
    wait_for_end(child)


def test_an_error_after_others_have_finished_is_that_of_the_job(start: Start) -> None:
    job = start(WAIT_FOR_SIGNAL, MASK + "tell(os.getpid());" + LATE_ERROR)
    pids = pids_of(job, 2)
    job.agree()
    os.kill(pids[0], signal.SIGUSR1)
    wait_for_end(pids[0])
    os.kill(pids[1], signal.SIGUSR1)
    code, _, stderr = job.end()
    assert code == 1
    assert "[worker 1] late" in stderr


def test_the_next_worker_continues_the_output_of_a_chief_that_dies(start: Start) -> None:
    ahead = "print('a'); print('b'); print('c'); tell(os.getpid());"
    job = start(
        "print('a'); print('b');" + WAIT,
        MASK + ahead + "signal.sigwait([signal.SIGUSR1]); print('d')",
        num_restarts=0,
    )
    pids = pids_of(job, 2)
    os.kill(pids[0], signal.SIGKILL)
    while "goes on without it" not in job.process.stderr.readline():
        pass
    stdout, _ = job.finish(pids[1])
    assert stdout == "a\nb\nc\nd\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_training_goes_on_when_nobody_reads_the_output(
    start: Start, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    job = start("tell(os.getpid()); sys.stdin.read(); print('x\\n' * 100_000); tell('printed')")
    job.process.stdout.close()
    job.news()
    assert job.news()[2:] == ["printed"]
    assert job.process.wait(60) == 0
    assert job.log(0).count("x") == 100_000


LONGEST_SECONDS = 60


@contextlib.contextmanager
def running(
    num_workers: int, heartbeat_seconds: float = 30.0
) -> Iterator[tuple[JobControl, queue.SimpleQueue[Event]]]:
    settings = LaunchSettings(
        workers=tuple(WorkerCommand(index=index, words=()) for index in range(num_workers)),
        environ={},
        logs=Path(),
        heartbeat_seconds=heartbeat_seconds,
        start_seconds=LONGEST_SECONDS,
        grace_seconds=7.0,
    )
    control = JobControl(settings, "127.0.0.1")
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    control.start(events.put)
    try:
        yield control, events
    finally:
        control.stop()


def joined_alone(control: JobControl, events: queue.SimpleQueue[Event]) -> Member:
    member = Member(
        job_of(control, 0), address="127.0.0.1:1", facts={}, on_view_over=lambda *_: None
    )
    member.join()
    formed = events.get(timeout=LONGEST_SECONDS)
    assert isinstance(formed, Formed)
    assert formed.view.members == (0,)
    return member


def job_of(control: JobControl, index: int, incarnation: int = 0) -> Job:
    job = job_from_environment(control.environment(index, incarnation, "127.0.0.1"))
    assert job is not None
    return job


def test_workers_find_the_coordinator_by_their_environment() -> None:
    with running(2) as (control, _):
        job = job_of(control, 1, incarnation=3)
        assert (job.index, job.count, job.incarnation) == (1, 2, 3)
        assert job.coordinator.startswith("127.0.0.1:")
        assert not job.hosts_coordinator
        secrets = {job_of(control, index).secret for index in (0, 1)}
        assert len(secrets) == 1
    with running(2) as (control, _):
        assert job_of(control, 0).secret not in secrets


def test_a_patience_that_is_no_duration_is_refused_before_anything_starts() -> None:
    environ = {"EVENER_PATIENCE_SECONDS": "long"}
    with pytest.raises(RunError, match="RUN-056"):
        JobControl(LaunchSettings(workers=(), environ=environ, logs=Path()), "127.0.0.1")


def test_the_end_and_who_is_not_waited_for() -> None:
    with running(2) as (control, events):
        control.go_without(1)
        member = joined_alone(control, events)
        assert member.leave(5, {}) is None
        assert events.get(timeout=LONGEST_SECONDS) == Ended()


def test_a_worker_whose_connection_closes_may_end_by_itself() -> None:
    with running(1) as (control, events):
        joined_alone(control, events).close()
        lost = events.get(timeout=LONGEST_SECONDS)
        assert isinstance(lost, Lost)
        assert (lost.index, lost.incarnation) == (0, 0)
        assert seconds_to_end(lost, 0.0) > 0


FROZEN = """
import os, signal
from evener.workers.job import job_from_environment
from evener.workers.member import Member
job = job_from_environment(os.environ)
Member(job, address="127.0.0.1:1", facts={}, on_view_over=lambda: None).join()
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_worker_that_froze_is_killed_at_once_unless_others_have_finished() -> None:
    with running(1, heartbeat_seconds=0.3) as (control, events):
        environ = {**os.environ, **control.environment(0, 0, "127.0.0.1")}
        with subprocess.Popen([sys.executable, "-c", FROZEN], env=environ) as worker:
            assert isinstance(events.get(timeout=LONGEST_SECONDS), Formed)
            lost = events.get(timeout=LONGEST_SECONDS)
            worker.kill()
    assert isinstance(lost, Lost)
    assert (lost.index, lost.why, lost.is_fault) == (0, "it was silent for 0.3 seconds", True)
    assert seconds_to_end(lost, 7.0) == 0.0
    assert seconds_to_end(dataclasses.replace(lost, is_fault=False), 7.0) == 7.0


SHIM = [sys.executable, "-I", "-S", str(Path(guard.__file__)), "run"]

PARENT = """
import os, signal, subprocess, sys
*shim, script = sys.argv[1:]
child = subprocess.Popen([*shim, str(os.getpid()), sys.executable, "-c", script])
signal.pause()
"""


def test_the_command_is_killed_with_its_parent() -> None:
    script = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, *SHIM, script], stdout=subprocess.PIPE, text=True
    ) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
        wait_for_end(child)


def test_the_command_is_not_run_without_its_parent() -> None:
    not_the_parent = str(os.getppid())
    done = subprocess.run([*SHIM, not_the_parent, "echo", "ran"], stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (1, b"")


def test_the_command_does_not_ignore_what_python_ignores() -> None:
    shell = ["sh", "-c", "kill -PIPE $$; echo survived"]
    done = subprocess.run([*SHIM, str(os.getpid()), *shell], stdout=subprocess.PIPE)
    assert done.stdout == b""
