"""Workers on Ray without Ray: resources, the process on a node, the driver's side."""

from __future__ import annotations

import queue
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evener.errors import RunError
from evener.workers import on_ray
from evener.workers.on_ray import (
    NodePlace,
    NodeWorker,
    OutputBatch,
    RayCluster,
    RayWorker,
    lacking,
    load_ray,
    node_environ,
    parse_resources,
    resources_of,
)
from evener.workers.output import Stream
from evener.workers.supervisor import WorkerStart


def test_names_of_ray_become_options_of_an_actor() -> None:
    found = parse_resources("GPU=0.5, CPU=4,fast_disk=2,slow=0")
    assert found == {"CPU": 4.0, "GPU": 0.5, "fast_disk": 2.0}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is not NAME=NUMBER"),
        ("CPU", "'CPU' is not NAME=NUMBER"),
        ("CPU=1,,GPU=1", "'' is not NAME=NUMBER"),
        ("=1", "'=1' is not NAME=NUMBER"),
        ("CPU=two", "'CPU=two' is not NAME=NUMBER"),
        ("CPU=-1", "'CPU=-1' is not NAME=NUMBER"),
        ("CPU=nan", "'CPU=nan' is not NAME=NUMBER"),
        ("CPU=inf", "'CPU=inf' is not NAME=NUMBER"),
        ("GPU=1.5", "1.5 is above 1 and no whole number"),
        ("CPU=1,CPU=2", "CPU is there twice"),
        ("gpu=1", "Ray writes GPU, not gpu"),
        ("CPU=0", "all are 0"),
    ],
)
def test_what_cannot_be_read(text: str, says: str) -> None:
    with pytest.raises(RunError, match="RUN-089") as raised:
        parse_resources(text)
    assert says in raised.value.why


def test_resources_of_all_workers_or_of_each() -> None:
    small, large = parse_resources("CPU=1"), parse_resources("CPU=2")
    assert resources_of(["CPU=2"], 3, [0]) == (large, large, large)
    assert resources_of(["CPU=1", "CPU=2"], 2, [0]) == (small, large)
    with pytest.raises(RunError, match="RUN-089") as raised:
        resources_of(["CPU=1", "CPU=2"], 3, [0])
    assert "given 2 times for 3 workers" in raised.value.why
    assert not lacking([large] * 2, {"CPU": 4.0})


def test_without_resources_the_gpus_of_the_devices_are_asked_for() -> None:
    assert resources_of([], 2, [0]) == ({"CPU": 1.0}, {"CPU": 1.0})
    assert [need.get("GPU", 0) for need in resources_of([], 2, [2, 1])] == [2, 1]
    assert [need.get("GPU", 0) for need in resources_of(["CPU=1"], 2, [2, 1])] == [0, 0]


SOURCE = (1, 0)
PLACE = NodePlace(host="10.0.0.7", gpus=("2", "3"))


def rest(worker: NodeWorker, number: int = 1) -> tuple[list[tuple[Stream, bytes]], int]:
    """Return all lines from a batch on, and the exit code."""
    lines: list[tuple[Stream, bytes]] = []
    while True:
        batch = worker.read(number)
        lines += batch.lines
        if batch.code is not None:
            return lines, batch.code
        number += 1


def test_output_environment_folder_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_NODE", "node")
    script = """
import os, sys
names = "OF_NODE", "EVENER_JOB_SECRET", "CUDA_VISIBLE_DEVICES"
print(*(os.environ[name] for name in names), os.getcwd(), flush=True)
sys.exit("failed")
"""
    worker = NodeWorker(lambda: PLACE)
    sent = {"OF_NODE": "command", "EVENER_JOB_SECRET": "word"}
    pid = worker.start(SOURCE, ["-c", script], sent, str(tmp_path))
    assert pid > 0
    lines, code = rest(worker)
    assert sorted(lines) == [
        ("stderr", b"failed\n"),
        ("stdout", f"node word 2,3 {tmp_path}\n".encode()),
    ]
    assert code == 1


def test_a_batch_whose_answer_was_lost_is_given_again(tmp_path: Path) -> None:
    worker = NodeWorker(lambda: PLACE)
    script = "import sys\nprint('first', flush=True)\nprint('second') if sys.stdin else None"
    worker.start(SOURCE, ["-c", script], {}, str(tmp_path))
    first = worker.read(1)
    assert worker.read(1) == first
    # A slow reader gets all at once.
    lines, code = rest(worker, 2) if first.code is None else ([], first.code)
    both = [*first.lines, *lines]
    assert both == [("stdout", b"first\n"), ("stdout", b"second\n")]
    assert code == 0


def test_many_lines_come_in_several_batches(tmp_path: Path) -> None:
    worker = NodeWorker(lambda: PLACE)
    worker.start(SOURCE, ["-c", "for k in range(10_000): print(k)"], {}, str(tmp_path))
    lines, code = rest(worker)
    assert [int(line) for _, line in lines] == list(range(10_000))
    assert code == 0


def test_a_process_that_is_killed_ends_by_the_signal(tmp_path: Path) -> None:
    worker = NodeWorker(lambda: PLACE)
    worker.start(SOURCE, ["-c", "import signal\nsignal.pause()"], {}, str(tmp_path))
    worker.kill()
    assert rest(worker) == ([], -9)


def test_a_node_without_the_folder(tmp_path: Path) -> None:
    worker = NodeWorker(lambda: PLACE)
    gone = tmp_path / "gone"
    with pytest.raises(RunError, match="RUN-088") as raised:
        worker.start(SOURCE, ["-c", "pass"], {}, str(gone))
    assert raised.value.what == "The worker cannot be started on the node 10.0.0.7."
    assert raised.value.why == f"it has no folder {gone}."


def test_a_node_that_cannot_start_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = NodeWorker(lambda: PLACE)
    monkeypatch.setattr("evener.workers.worker_process.sys.executable", str(tmp_path / "python"))
    with pytest.raises(RunError, match="RUN-088") as raised:
        worker.start(SOURCE, ["-c", "pass"], {}, str(tmp_path))
    assert "No such file" in raised.value.why
    assert sys.executable in raised.value.why


def test_gpus_are_those_of_ray_and_other_jobs_are_not_seen() -> None:
    node = {
        "CUDA_VISIBLE_DEVICES": "0,1,2,3",
        "EVENER_JOB": "{}",
        "PATH": "/node",
        "PYTHONBREAKPOINT": "ray.util.rpdb.set_trace",
        "TF_CONFIG": "{}",
    }
    sent = {
        "CUDA_VISIBLE_DEVICES": "7",
        "HIP_VISIBLE_DEVICES": "7",
        "EVENER_JOB": '{"index": 1}',
        "HOME": "/home/me",
        "PATH": "/command",
        "RAY_ADDRESS": "n1:6379",
    }
    expected = {"EVENER_JOB": '{"index": 1}', "HOME": "/home/me", "PATH": "/node"}
    assert node_environ(node, sent, ["1"]) == {**expected, "CUDA_VISIBLE_DEVICES": "1"}
    assert node_environ(node, sent, []) == {**expected, "CUDA_VISIBLE_DEVICES": "-1"}


LONGEST_SECONDS = 60
LINE: tuple[Stream, bytes] = ("stdout", b"line\n")
SECRET = {"EVENER_JOB_SECRET": "word"}


class RayError(Exception): ...


class RayActorError(RayError): ...


class ActorUnavailableError(RayActorError): ...


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__(f"Traceback\n{cause}")
        self.cause = cause


class FakeRay:
    """Answers are what calls returned, errors that they raise, or None while there are none."""

    exceptions = SimpleNamespace(
        RayError=RayError,
        RayActorError=RayActorError,
        ActorUnavailableError=ActorUnavailableError,
        RayTaskError=RayTaskError,
    )

    def __init__(self) -> None:
        self.killed: list[object] = []

    def wait(self, answers: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        ready = [answer for answer in answers if answer is not None]
        if not ready:
            threading.Event().wait(min(timeout, 0.01))
        return ready, []

    def get(self, answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, actor: object) -> None:
        self.killed.append(actor)


def fake_actor(host: Any = "10.0.0.7", start: Any = 4711, reads: tuple[Any, ...] = ()) -> Any:
    """Return an actor with the methods of a `NodeWorker`, which notes how they are called."""
    calls: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    answers = {"host": [host], "start": [start], "read": list(reads), "send": [], "kill": []}

    def method(name: str) -> SimpleNamespace:
        def call(*words: Any) -> Any:
            calls.put((name, *words))
            return answers[name].pop(0) if answers[name] else None

        return SimpleNamespace(remote=call)

    def wait_for(name: str) -> tuple[Any, ...]:
        while (call := calls.get(timeout=LONGEST_SECONDS))[0] != name:
            pass
        return call

    return SimpleNamespace(wait_for=wait_for, **{name: method(name) for name in answers})


class Followed:
    """A worker, with what comes of it."""

    def __init__(self, actor: Any, place_seconds: float = LONGEST_SECONDS) -> None:
        self.lines: list[tuple[Stream, bytes]] = []
        self.origins: list[str] = []
        self.hosts: list[str] = []
        self._ended: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._ray = FakeRay()
        output: Any = SimpleNamespace(
            begin=self.origins.append,
            line=lambda stream, line: self.lines.append((stream, line)),
            close=lambda: None,
        )
        start = WorkerStart(
            source=(1, 2),
            words=("/driver/python", "-m", "evener"),
            environ=lambda host: self.hosts.append(host) or SECRET,
            output=output,
            on_end=lambda code, why: self._ended.put((code, why)),
        )
        self.worker = RayWorker(
            start, self._ray, actor, folder="/shared", place_seconds=place_seconds
        )

    def end(self) -> tuple[int, str]:
        self.worker.join()
        assert len(self._ray.killed) == 1
        return self._ended.get(timeout=LONGEST_SECONDS)

    @property
    def stderr(self) -> str:
        return b"".join(line for stream, line in self.lines if stream == "stderr").decode()


def test_a_worker_runs_to_its_end() -> None:
    batches = OutputBatch(lines=(LINE,)), OutputBatch(lines=()), OutputBatch(lines=(LINE,), code=3)
    actor = fake_actor(reads=batches)
    found = Followed(actor)
    assert found.end() == (3, "")
    assert found.lines == [LINE, LINE]
    assert found.origins == ["process 4711 on 10.0.0.7"]
    assert found.hosts == ["10.0.0.7"]
    # The program is the node's own Python.
    assert actor.wait_for("start") == ("start", (1, 2), ("-m", "evener"), SECRET, "/shared")


def test_a_batch_is_asked_for_again_while_the_actor_is_not_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(on_ray, "_POLL_SECONDS", 0.01)
    cut = ActorUnavailableError("cut")
    actor = fake_actor(reads=(OutputBatch(lines=(LINE,)), cut, cut, OutputBatch(lines=(), code=0)))
    found = Followed(actor)
    assert found.end() == (0, "")
    numbers = [actor.wait_for("read")[1] for _ in range(4)]
    assert numbers == [1, 2, 2, 2]


def test_the_death_of_an_actor_is_the_loss_of_its_worker() -> None:
    found = Followed(fake_actor(reads=(RayActorError("It died.\n\tpid: 7\nIts node has failed."),)))
    assert found.end() == (-9, "was lost with its Ray actor (Its node has failed)")


def test_a_worker_without_a_place_is_given_up_after_a_time_or_by_a_signal() -> None:
    found = Followed(fake_actor(host=None), place_seconds=0.05)
    assert found.end() == (-9, "was not placed by Ray within 0.05 seconds")
    found = Followed(fake_actor(host=None))
    found.worker.send(signal.SIGTERM)
    assert found.end() == (-15, "")


def test_a_signal_is_passed_on() -> None:
    actor = fake_actor(reads=(None,))
    found = Followed(actor)
    actor.wait_for("read")
    found.worker.send(signal.SIGTERM)
    assert actor.wait_for("send") == ("send", signal.SIGTERM)
    found.worker.kill()
    actor.wait_for("kill")


def test_an_actor_that_does_not_report_the_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "_KILL_SECONDS", 0.05)
    actor = fake_actor(reads=(None,))
    found = Followed(actor)
    actor.wait_for("read")
    found.worker.kill()
    assert actor.wait_for("kill") == ("kill",)
    assert found.end() == (-9, "")


NO_FOLDER = on_ray.not_started("10.0.0.7", "it has no folder /shared")


@pytest.mark.parametrize(
    ("actor", "says"),
    [
        (
            fake_actor(host=RayActorError("creation\nModuleNotFoundError: No module 'evener'")),
            "[RUN-088] The worker cannot be started on the node that Ray has chosen.",
        ),
        (fake_actor(start=RayTaskError(ModuleNotFoundError("No module 'evener'"))), "No module"),
        # The error of the node itself is shown as it is.
        (fake_actor(start=RayTaskError(NO_FOLDER)), f"{NO_FOLDER}\n"),
    ],
)
def test_a_node_that_cannot_run_evener_is_an_error_of_the_worker(actor: Any, says: str) -> None:
    found = Followed(actor)
    assert found.end() == (1, "")
    assert says in found.stderr
    assert "RUN-088" in found.stderr


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RunError, match="RUN-085") as raised:
        load_ray()
    assert raised.value.fix.startswith("pip install evener[ray]")


def test_places_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[tuple[Any, str]] = []

    def placement_group(bundles: Any, strategy: str) -> Any:
        groups.append((bundles, strategy))
        return SimpleNamespace(wait=lambda seconds: False)

    ray = SimpleNamespace(
        init=lambda **options: None,
        util=SimpleNamespace(placement_group=placement_group),
        cluster_resources=lambda: {"CPU": 8.0},
        available_resources=lambda: {"CPU": 8.0},
    )
    monkeypatch.setattr(on_ray, "load_ray", lambda: ray)
    there = RayCluster("auto", [{"CPU": 1.0, "GPU": 2.0}] * 2, place_seconds=0.1)
    told: list[str] = []
    with pytest.raises(RunError, match="RUN-087") as raised:
        there.reserve(told.append)
    assert groups == [([{"CPU": 1.0, "GPU": 2.0}] * 2, "SPREAD")]
    assert told == [
        "waiting for places of Ray: 2 workers with CPU=1,GPU=2; "
        "they need 4 GPU in all, and the cluster has 0"
    ]
    assert "2 workers with CPU=1,GPU=2" in raised.value.what
    assert raised.value.why == "they need 4 GPU in all, and the cluster has 0."
