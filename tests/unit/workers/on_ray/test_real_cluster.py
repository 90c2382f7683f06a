"""Supervised jobs on the nodes of a real Ray cluster, which lose workers, actors and nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from unit.workers.conftest import StartedJob, wait_for_end
from unit.workers.on_ray.ray_nodes import RayNodes, running_nodes

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
Start = Callable[..., StartedJob]

# Tells its own process, that of its actor, and that of its node; then waits for SIGUSR1.
WAIT = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
child = subprocess.Popen(["sleep", "600"])
actor = os.getppid()
node = int(open(f"/proc/{actor}/stat").read().rpartition(")")[2].split()[1])
tell(os.getpid(), actor, node, child.pid)
print("begun", flush=True)
signal.sigwait([signal.SIGUSR1])
print("done", flush=True)
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with running_nodes(3) as nodes:
        yield nodes


def told(job: StartedJob) -> tuple[tuple[int, int], list[int]]:
    """Return the next worker that tells something, and the processes that it tells."""
    index, incarnation, *pids = map(int, job.news())
    return (index, incarnation), pids


def begun(job: StartedJob, count: int) -> dict[int, list[int]]:
    """Return the processes of the first incarnation of each worker."""
    found = dict(told(job) for _ in range(count))
    assert set(found) == {(index, 0) for index in range(count)}
    return {index: pids for (index, _), pids in found.items()}


@pytest.mark.parametrize(
    ("hit", "sent", "says"),
    [
        ("worker", signal.SIGKILL, "was ended by SIGKILL; it is started again (1 of 3 restarts"),
        ("actor", signal.SIGKILL, "was lost with its Ray actor"),
        ("worker", signal.SIGSTOP, "was lost: it was silent; it is started again"),
        ("actor", signal.SIGSTOP, "was lost: it was silent; it is started again"),
    ],
)
def test_a_worker_that_is_lost_is_replaced_by_a_new_actor(
    start: Start, nodes: RayNodes, hit: str, sent: signal.Signals, says: str
) -> None:
    job = start(WAIT, WAIT, ray=nodes.address)
    pids = begun(job, 2)
    assert len({node for _, _, node, _ in pids.values()}) == 2
    worker, actor, _, child = pids[1]
    os.kill(worker if hit == "worker" else actor, sent)
    if sent == signal.SIGSTOP:
        job.lose(1, 0, 0)
    source, replacement = told(job)
    assert source == (1, 1)
    assert replacement[1] != actor
    wait_for_end(worker, actor, child)
    stdout, stderr = job.finish(pids[0][0], replacement[0])
    # Ray prints of a dead actor.
    assert [line for line in stdout.splitlines() if "(raylet)" not in line] == ["begun", "done"]
    assert f"worker 1 {says}" in stderr
    assert job.log(1).count("--- worker 1, incarnation ") == 2
    wait_for_end(*(pid for each in (pids[0], replacement) for pid in (each[1], each[3])))


def test_the_worker_of_a_node_that_dies_comes_back_on_another(
    start: Start, nodes: RayNodes
) -> None:
    job = start(WAIT, WAIT, WAIT, ray=nodes.address)
    pids = begun(job, 3)
    worker, _, node, child = pids[2]
    os.kill(node, signal.SIGKILL)
    wait_for_end(worker, child)
    nodes.add()
    source, replacement = told(job)
    assert source == (2, 1)
    assert replacement[2] not in {pids[0][2], pids[1][2], node}
    _, stderr = job.finish(pids[0][0], pids[1][0], replacement[0])
    assert "worker 2 was lost with its Ray actor" in stderr


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_the_supervisor_is_ended(
    start: Start, nodes: RayNodes, sent: signal.Signals
) -> None:
    job = start(WAIT, WAIT, ray=nodes.address)
    pids = begun(job, 2)
    job.process.send_signal(sent)
    if sent == signal.SIGTERM:
        assert job.end()[0] == 143
    wait_for_end(
        *(pid for worker, actor, _, child in pids.values() for pid in (worker, actor, child))
    )


def test_a_worker_sees_the_gpus_that_it_has_asked_for(start: Start, nodes: RayNodes) -> None:
    script = "tell(os.environ['CUDA_VISIBLE_DEVICES'])"
    job = start(script, script, ray=nodes.address, resources=["CPU=1", "CPU=1,GPU=2"])
    assert sorted(job.news() for _ in range(2)) == [["0", "0", "-1"], ["1", "0", "0,1"]]
    assert job.end()[0] == 0


def test_a_node_without_the_folder_is_named(
    start: Start, nodes: RayNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    job = start("pass", ray=nodes.address, remove=str(gone))
    code, _, stderr = job.end()
    assert code == 1
    assert "[RUN-088] The worker cannot be started on the node" in stderr
    assert f"it has no folder {gone}" in stderr
