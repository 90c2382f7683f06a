"""The part of a process in its job: how it begins, and how it ends."""

from __future__ import annotations

import atexit
import dataclasses
import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from evener.errors import RunError
from evener.workers import faults, process
from evener.workers.coordinator import Coordinator
from evener.workers.late import Late, Network
from evener.workers.member import Member
from evener.workers.messages import View
from workers.seats import job_of


class Ended(Exception):
    """The process has ended."""


def group_that_leaves(error: RunError | None = None) -> Any:
    """Return a group that ends with an error, or well."""
    calls: list[str] = []

    def leave() -> None:
        calls.append("leave")
        if error is not None:
            raise error

    return SimpleNamespace(calls=calls, leave=leave, close=lambda: calls.append("close"))


def exit_with(code: int) -> None:
    raise Ended(code)


def test_a_worker_tells_for_whom_it_waits() -> None:
    addresses = ("a:1", "b:2", "c:3")
    job = dataclasses.replace(job_of(0, 3), coordinator="host:7", addresses=addresses)
    job = dataclasses.replace(job, start_seconds=300.0)
    coordinator: Any = SimpleNamespace(absent=lambda: [1, 2])
    for hosted, awaited in (
        (coordinator, "worker 1 at b:2, worker 2 at c:3"),
        (None, "the other workers, who meet at host:7"),
    ):
        lines: list[str] = []
        is_told = threading.Event()

        def tell(line: str, lines: list[str] = lines, told: threading.Event = is_told) -> None:
            lines.append(line)
            told.set()

        with process.telling_of_wait(job, hosted, tell, every_seconds=0.01):
            assert is_told.wait(60)
        assert lines[0] == f"waiting for {awaited}, 0.01 of 300 s"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (faults.expelled(1, "its program ended while that of worker 0 went on"), 75),
        (faults.coordinator_gone("host:1", "its connection closed"), 75),
        (faults.exchanged_twice(0, "x"), 1),
    ],
)
def test_a_worker_that_the_others_do_not_agree_with_does_not_end_with_0(
    error: RunError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "_exit", exit_with)
    group = group_that_leaves(error)
    with pytest.raises(Ended, match=f"{code}"):
        process._leave(group, None)
    assert group.calls == ["leave", "close"]
    assert error.code in capsys.readouterr().err


def test_a_replacement_that_has_caught_up_with_the_end_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = iter([None, None, faults.job_over(1)])
    view = View(number=1, members=(0,), addresses={}, done={}, joined=())

    def look() -> tuple[View, dict[str, Any]]:
        error = next(looks)
        if error is not None:
            raise error
        return view, {}

    member: Any = SimpleNamespace(look=look, pause=lambda seconds: None)
    with pytest.raises(RunError, match="RUN-074") as caught:
        Late(view, member, {}).wait_for_end()
    assert next(looks, "all") == "all"
    monkeypatch.setattr(os, "_exit", exit_with)
    group = group_that_leaves(caught.value)
    process._leave(group, None)
    assert group.calls == ["leave", "close"]


def test_the_patience_of_a_job_is_that_of_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Network] = []

    def connect(*words: Any) -> Network:
        given.append(Network(*words))
        return given[0]

    member = SimpleNamespace(join=lambda: SimpleNamespace(number=1))
    group = SimpleNamespace(connect=lambda: None, end_view=lambda: None)
    monkeypatch.setattr(process, "Member", lambda *_, **__: member)
    monkeypatch.setattr(process, "Network", connect)
    monkeypatch.setattr(process, "Group", lambda *_, **__: group)
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    process._join(job_of(0, 2, 600.0), None, print)
    [network] = given
    mesh = network.nobody()
    assert mesh._patience == 600.0
    mesh.close()
    network.close()


def two_workers(**other: Any) -> Any:
    """Return two workers, of which this is the first, before their first step."""
    return SimpleNamespace(
        is_chief=True,
        told=[],
        before_steps=[],
        exchange=lambda name, value: [value, {**(value or {}), **other}],
        use_collectives=lambda server: None,
    )


@pytest.mark.parametrize(
    ("exchange", "has_gpus", "other", "carrier"),
    [
        ("auto", False, {}, "mesh: not all of them compute on GPUs"),
        ("auto", True, {"gpus": False}, "mesh: not all of them compute on GPUs"),
        ("auto", True, {"has_started": True}, "mesh: TensorFlow had started before they met"),
        ("mesh", True, {}, "mesh: it was chosen"),
        ("auto", True, {}, "NCCL"),
        ("tensorflow", True, {"gpus": False}, "ring over gRPC"),
    ],
)
def test_the_carrier_that_workers_agree_on(
    exchange: str,
    has_gpus: bool,
    other: dict[str, Any],
    carrier: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "has_started", lambda: False)
    monkeypatch.setattr(process, "CollectiveServer", lambda *_: SimpleNamespace(address="a:1"))
    group = two_workers(**other)
    job = dataclasses.replace(job_of(0, 2), exchange=exchange)
    process.agree_on_carrier(group, job, has_gpus, group.told.append)
    for begin in group.before_steps:
        begin()
    assert [carrier in line for line in group.told] == [True]


@pytest.mark.parametrize(
    ("devices", "has_gpus", "found"),
    [
        (None, True, True),
        (None, False, False),
        ("cpu:2", True, False),
        ("gpu:0", True, True),
        (["gpu:0", "gpu:1"], True, True),
        (["worker:0/gpu:0", "worker:1/cpu:0"], True, False),
        (["cpu:0"], True, False),
    ],
)
def test_a_process_computes_on_gpus_if_there_are_some_and_it_uses_no_others(
    devices: Any, has_gpus: bool, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EVENER_DEVICES", raising=False)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * has_gpus)
    assert process.uses_gpus(devices) is found


@pytest.mark.parametrize(
    ("other", "code"), [({"exchange": "mesh"}, "RUN-110"), ({"has_started": True}, "RUN-111")]
)
def test_workers_that_cannot_agree_on_a_carrier(
    other: dict[str, Any], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "has_started", lambda: False)
    group = two_workers(**other)
    job = dataclasses.replace(job_of(0, 2), exchange="tensorflow")
    with pytest.raises(RunError, match=code):
        process.agree_on_carrier(group, job, False, group.told.append)


def test_the_coordinator_waits_for_replacements_that_have_to_learn_of_the_end() -> None:
    """The scheduler of a task that has lost the others would start it again, without an end."""
    coordinator = Coordinator(1, b"secret", heartbeat_seconds=30.0, start_seconds=30.0)
    coordinator.start()
    job = dataclasses.replace(job_of(0, 1), coordinator=coordinator.address, secret=b"secret")
    given: Any = {"address": "a:1", "facts": {}, "on_view_over": lambda: None}
    first = Member(job, **given)
    first.join()
    newcomer = Member(dataclasses.replace(job, incarnation=1), **given)
    newcomer.appear()
    assert first.leave(0, {}) is None
    group = group_that_leaves()
    leaving = threading.Thread(target=process._leave, args=[group, coordinator])
    leaving.start()
    with pytest.raises(RunError, match="RUN-074"):
        newcomer.look()
    assert leaving.is_alive()
    newcomer.close()
    leaving.join(20.0)
    assert not leaving.is_alive()
