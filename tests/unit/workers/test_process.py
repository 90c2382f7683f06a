"""The part of a process in its job: how it begins, and how it ends."""

from __future__ import annotations

import atexit
import os
from types import SimpleNamespace
from typing import Any

import pytest

from evener.errors import RunError
from evener.workers import faults, process
from evener.workers.late import Late
from evener.workers.messages import View
from workers.seats import job_of


class Ended(Exception):
    """The process has ended."""


class Group:
    """Group that ends with an error, or well."""

    def __init__(self, error: RunError | None = None) -> None:
        self.calls: list[str] = []
        self._error = error

    def leave(self) -> None:
        self.calls.append("leave")
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self.calls.append("close")


def exit_with(code: int) -> None:
    raise Ended(code)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (faults.expelled(1, "its program ended while that of worker 0 went on"), 75),
        (faults.coordinator_gone("host:1", "its connection closed"), 75),
        (faults.not_come([0], 1, 5.0), 1),
    ],
)
def test_a_worker_that_the_others_do_not_agree_with_does_not_end_with_0(
    error: RunError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "_exit", exit_with)
    group: Any = Group(error)
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
    group: Any = Group(caught.value)
    process._leave(group, None)
    assert group.calls == ["leave", "close"]


def test_the_patience_of_a_job_is_that_of_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    member = SimpleNamespace(join=lambda: SimpleNamespace(number=1))
    group = SimpleNamespace(connect=lambda: None, end_view=lambda: None)
    monkeypatch.setattr(process, "Member", lambda *_, **__: member)
    monkeypatch.setattr(process, "Network", lambda *_, **kwargs: given.update(kwargs))
    monkeypatch.setattr(process, "Group", lambda *_, **__: group)
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    process._join(job_of(0, 2), None)
    assert given["patience_seconds"] == 600.0
