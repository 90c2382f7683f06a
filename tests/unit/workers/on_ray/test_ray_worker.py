"""The driver's side of a worker, with an actor that does what a test says."""

from __future__ import annotations

import queue
import signal
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from evener.errors import RunError
from evener.workers import on_ray
from evener.workers.on_ray import OutputBatch, RayCluster, RayWorker, Resources, load_ray
from evener.workers.output import Stream
from evener.workers.supervisor import WorkerStart

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


class FakeActor:
    """Has the methods of a `NodeWorker`, and notes how they are called."""

    def __init__(self, host: Any = "10.0.0.7", start: Any = 4711, reads: tuple[Any, ...] = ()):
        self.calls: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        answers = {"host": [host], "start": [start], "read": list(reads)}

        def remote(name: str) -> Callable[..., Any]:
            def call(*words: Any) -> Any:
                self.calls.put((name, *words))
                left = answers.get(name)
                return left.pop(0) if left else None

            return call

        for name in ("host", "start", "read", "send", "kill"):
            setattr(self, name, SimpleNamespace(remote=remote(name)))

    def wait_for(self, name: str) -> tuple[Any, ...]:
        while (call := self.calls.get(timeout=LONGEST_SECONDS))[0] != name:
            pass
        return call


class Followed:
    """A worker, with what comes of it."""

    def __init__(self, actor: FakeActor, place_seconds: float = LONGEST_SECONDS) -> None:
        self.origin = ""
        self.lines: list[tuple[Stream, bytes]] = []
        self.hosts: list[str] = []
        self.ended: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self.ray = FakeRay()
        start = WorkerStart(
            source=(1, 2),
            words=("/driver/python", "-m", "evener"),
            environ=self._environ,
            output=self,
            on_end=lambda code, why: self.ended.put((code, why)),
        )
        self.worker = RayWorker(
            start, self.ray, actor, folder="/shared", place_seconds=place_seconds
        )

    def _environ(self, host: str) -> dict[str, str]:
        self.hosts.append(host)
        return SECRET

    def begin(self, origin: str) -> None:
        self.origin = origin

    def line(self, stream: Stream, line: bytes) -> None:
        self.lines.append((stream, line))

    def close(self) -> None: ...

    def end(self) -> tuple[int, str]:
        self.worker.join()
        assert len(self.ray.killed) == 1
        return self.ended.get(timeout=LONGEST_SECONDS)

    @property
    def stderr(self) -> str:
        return b"".join(line for stream, line in self.lines if stream == "stderr").decode()


def test_a_worker_runs_to_its_end() -> None:
    actor = FakeActor(
        reads=(
            OutputBatch(lines=(LINE,)),
            OutputBatch(lines=()),
            OutputBatch(lines=(LINE,), code=3),
        )
    )
    found = Followed(actor)
    assert found.end() == (3, "")
    assert found.lines == [LINE, LINE]
    assert found.origin == "process 4711 on 10.0.0.7"
    assert found.hosts == ["10.0.0.7"]
    # The program is the node's own Python.
    assert actor.wait_for("start") == ("start", (1, 2), ("-m", "evener"), SECRET, "/shared")


def test_a_batch_is_asked_for_again_while_the_actor_is_not_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(on_ray, "_POLL_SECONDS", 0.01)
    cut = ActorUnavailableError("cut")
    actor = FakeActor(reads=(OutputBatch(lines=(LINE,)), cut, cut, OutputBatch(lines=(), code=0)))
    found = Followed(actor)
    assert found.end() == (0, "")
    numbers = [actor.wait_for("read")[1] for _ in range(4)]
    assert numbers == [1, 2, 2, 2]


def test_the_death_of_an_actor_is_the_loss_of_its_worker() -> None:
    found = Followed(FakeActor(reads=(RayActorError("It died.\n\tpid: 7\nIts node has failed."),)))
    assert found.end() == (-9, "was lost with its Ray actor (Its node has failed)")


def test_a_worker_without_a_place_is_given_up_after_a_time() -> None:
    found = Followed(FakeActor(host=None), place_seconds=0.05)
    assert found.end() == (-9, "was not placed by Ray within 0.05 seconds")


def test_a_signal_ends_a_worker_without_a_place() -> None:
    found = Followed(FakeActor(host=None))
    found.worker.send(signal.SIGTERM)
    assert found.end() == (-15, "")


def test_a_signal_is_passed_on() -> None:
    actor = FakeActor(reads=(None,))
    found = Followed(actor)
    actor.wait_for("read")
    found.worker.send(signal.SIGTERM)
    assert actor.wait_for("send") == ("send", signal.SIGTERM)
    found.worker.kill()
    actor.wait_for("kill")


def test_an_actor_that_does_not_report_the_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "_KILL_SECONDS", 0.05)
    actor = FakeActor(reads=(None,))
    found = Followed(actor)
    actor.wait_for("read")
    found.worker.kill()
    assert actor.wait_for("kill") == ("kill",)
    assert found.end() == (-9, "")


@pytest.mark.parametrize(
    "actor",
    [
        FakeActor(host=RayActorError("creation\nModuleNotFoundError: No module named 'evener'")),
        FakeActor(start=RayTaskError(ModuleNotFoundError("No module named 'evener'"))),
    ],
)
def test_a_node_without_evener_is_an_error_of_the_worker(actor: FakeActor) -> None:
    found = Followed(actor)
    assert found.end() == (1, "")
    assert "[RUN-088] The worker cannot be started on the node that Ray has chosen." in found.stderr
    assert "No module named 'evener'" in found.stderr


def test_the_error_of_a_node_is_shown() -> None:
    error = on_ray.not_started("10.0.0.7", "it has no folder /shared")
    found = Followed(FakeActor(start=RayTaskError(error)))
    assert found.end() == (1, "")
    assert found.stderr == f"{error}\n"


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
    there = RayCluster("auto", [Resources(num_gpus=2.0)] * 2, place_seconds=0.1)
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
