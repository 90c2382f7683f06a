"""When enough was seen, and what is told until then; the file of events; what is left alive."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from evener.doctor.watch.probes.ending import code_of, shortened
from evener.doctor.watch.probes.events import Events
from evener.doctor.watch.probes.progress import Progress
from evener.doctor.watch.supervisor import below, parents_of
from evener.errors import PlanError
from evener.run.script import Loading


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def events(tmp_path: Path) -> Events:
    return Events(str(tmp_path / "events"))


def told(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events").read_text().splitlines()]


def test_enough_are_so_many_steps_and_so_much_time(events: Events, tmp_path: Path) -> None:
    ends: list[int] = []
    progress = Progress(events, num_steps=3, min_seconds=10.0, clock=Clock())
    progress.end = lambda: ends.append(progress.num_steps)
    progress.stepped(seconds=99.0)  # The first one makes the variables.
    progress.stepped(seconds=99.0, traced=True)
    progress.stepped(seconds=1.0)
    progress.stepped(seconds=1.0, num_steps=2)
    assert not ends  # Three, in two seconds.
    progress.stepped(seconds=8.0)
    assert ends == [6]
    assert [event["seconds"] for event in told(tmp_path) if event["kind"] == "step"] == [
        None,
        None,
        1.0,
        1.0,
        8.0,
    ]
    assert told(tmp_path)[-1]["kind"] == "enough"


def test_what_goes_wrong_in_watching_is_told_and_goes_no_further(
    events: Events, tmp_path: Path
) -> None:
    def broken() -> None:
        raise ValueError("no variables")

    progress = Progress(events, num_steps=3, min_seconds=0.0, clock=Clock())
    progress.at_first_step.append(broken)
    progress.stepped(seconds=1.0)
    assert [event["what"] for event in told(tmp_path) if event["kind"] == "missed"] == [
        f"{broken.__qualname__}: ValueError: no variables"
    ]


def test_what_only_grows_is_told_now_and_then(events: Events) -> None:
    clock, times = Clock(), []
    progress = Progress(events, num_steps=99, min_seconds=0.0, clock=clock)
    progress.sources.append(lambda: times.append(clock.now))
    for clock.now in (0.1, 0.6, 0.7, 1.0, 1.2):
        progress.stepped(seconds=0.1)
    assert times == [0.6, 1.2]


def test_events_are_whole_and_forks_tell_none(
    events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events.write("one", text="ü\n\ud800")
    events.write_once("two")
    events.write_once("two")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    events.write("forked")
    assert [event["kind"] for event in told(tmp_path)] == ["one", "two"]


def test_processes_are_found_through_their_parents() -> None:
    stats = {10: "10 (sh) S 1 1", 11: "11 (a) Z 9) R 10 1", 12: "12 (b) Z 10 1", 13: "13 (c) D 1 1"}
    parents = parents_of(stats)
    assert parents == {10: 1, 11: 10, 13: 1}
    assert below(10, parents) == {11}
    assert below(1, parents) == {10, 11, 13}


def test_a_code_is_found_within_what_a_library_made_of_it() -> None:
    error = PlanError("PLAN-999", "It does not fit.", why="no.", fix="none.")
    try:
        raise RuntimeError("in a layer") from error
    except RuntimeError as wrapped:
        assert code_of(wrapped) == "PLAN-999"
    assert code_of(ValueError("[ENG-061] said so")) == "ENG-061"
    assert code_of(SystemExit(3)) == code_of(ValueError("see [ENG-061]")) == ""


def test_long_messages_keep_both_ends() -> None:
    assert shortened("x" * 10, 10) == "x" * 10
    short = shortened("a" * 50 + "b" * 50, 20)
    assert short == "a" * 10 + "\n[...]\n" + "b" * 10


def test_an_import_is_noticed_when_the_last_of_several_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evener_one.py").write_text("import evener_two\nvalue = 1\n")
    (tmp_path / "evener_two.py").write_text("import evener_one\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found: list[bool] = []
    names = ("evener_one", "evener_two")
    finders = list(sys.meta_path)
    Loading(names, lambda: found.append(hasattr(sys.modules["evener_one"], "value"))).watch()
    try:
        assert not found
        importlib.import_module("evener_one")
        assert found == [True]
        assert sys.meta_path == finders
        # What is there already counts.
        Loading(names, lambda: found.append(True)).watch()
        assert found == [True, True]
    finally:
        for name in names:
            sys.modules.pop(name, None)
