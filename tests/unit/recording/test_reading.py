"""Records that are read: their figures, the activities of a step, and what is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evener.errors import RunError
from evener.recording.reading import (
    STOPPED,
    Activity,
    DeviceTime,
    Summary,
    activities,
    limit_of,
    read_records,
    summarise,
    time_of,
)
from unit.recording.samples import FINDING, diagnosis, lines, write_record


def test_a_whole_record_has_its_figures(tmp_path: Path) -> None:
    (record,) = read_records(write_record(tmp_path / "run"))
    assert record.missing == ()
    summary = summarise(record)
    assert (summary.state, summary.num_samples, summary.samples_per_second) == ("ended", 900, 100.0)
    assert summary.step_seconds == 0.005
    assert summary.num_steps == 3  # the first one is left out
    time = summary.inside["cpu:0"]
    assert time.compute == pytest.approx(200e-6)
    assert time.wait == {"cpu:1": pytest.approx(600e-6)}
    assert time.copy == pytest.approx(100e-6)
    assert time.update == pytest.approx(100e-6)
    assert summary.inside["cpu:1"].wait == {"cpu:0": pytest.approx(200e-6)}


def test_a_crashed_run_is_read_up_to_its_half_line(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run", events=())
    metrics = folder / "metrics.jsonl"
    metrics.write_text(metrics.read_text()[:-20])
    (record,) = read_records(folder)
    assert len(record.metrics) == 9
    assert record.missing == ("metrics.jsonl: Its last line cannot be read, as after a crash.",)
    assert summarise(record).state == "no end"
    # Ctrl-C is no failure.
    stopped = {"time": 9.0, "event": "end", "text": STOPPED}
    (record,) = read_records(write_record(tmp_path / "stopped", events=[stopped]))
    assert summarise(record).state == "stopped"


def test_what_is_not_there_is_told_and_a_line_that_fits_no_step_is_left_out(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run")
    (folder / "losses.jsonl").unlink()
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"full": true}\n')
    with (folder / "steps.jsonl").open("a") as file:
        step = {"time": 1.0, "step": 9, "begin": [0], "end": [1]}
        file.write(lines({**step, "of": 0}, {**step, "of": 7}) + "[1]\n")
    (record,) = read_records(folder)
    assert len(record.steps) == 4
    assert set(record.missing) == {
        "losses.jsonl is not there.",
        "events.jsonl is full: later lines were left out.",
        "steps.jsonl: 1 lines cannot be read, as after a crash.",
    }


@pytest.mark.parametrize("what", ["nothing", "a file", "an empty folder"])
def test_a_folder_without_a_record_is_refused(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "run"
    if what == "a file":
        folder.write_text("")
    if what == "an empty folder":
        folder.mkdir()
    with pytest.raises(RunError, match="RUN-103"):
        read_records(folder)


def test_a_newer_record_is_refused_with_both_versions(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"RUN-104(?s:.)*format 2; this evener reads 1"):
        read_records(write_record(tmp_path / "run", version=2))


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"version": 1}', '{"version": 1, "began": 2'])
def test_a_damaged_description_is_an_error(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_record(tmp_path / "run")
    (folder / "record.json").write_text(text)
    with pytest.raises(RunError, match="RUN-105"):
        read_records(folder)

    def refuse(self: Path, **_: object) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(RunError, match=r"RUN-105(?s:.)*Permission denied"):
        read_records(folder)


def test_workers_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("worker-10", "worker-2", "worker-2.1"):
        write_record(tmp_path / "job" / name)
    found = [record.path.name for record in read_records(tmp_path / "job")]
    assert found == ["worker-2", "worker-2.1", "worker-10"]


def test_findings_are_read(tmp_path: Path) -> None:
    given = diagnosis(FINDING, num_ignored=2)
    (record,) = read_records(write_record(tmp_path / "run", diagnosis=given))
    assert record.diagnosis is not None
    (finding,) = record.diagnosis.findings
    assert (finding.code, finding.location) == ("DOC-402", "train.py:7")
    assert finding.evidence == ("print(float(loss))",)
    assert (record.diagnosis.num_ignored, record.diagnosis.problem) == (2, "")
    # A record from before there were findings is read too.
    file = record.path / "record.json"
    fields = json.loads(file.read_text())
    del fields["diagnosis"]
    file.write_text(json.dumps(fields))
    (record,) = read_records(record.path)
    assert record.diagnosis is None


@pytest.mark.parametrize(
    "given",
    [
        "DOC-402",
        {"findings": []},
        diagnosis({"code": "DOC-402"}),
        diagnosis({**FINDING, "evidence": None}),
        {**diagnosis(FINDING), "num_ignored": "many"},
    ],
)
def test_damaged_findings_are_refused(tmp_path: Path, given: Any) -> None:
    with pytest.raises(RunError, match="RUN-105"):
        read_records(write_record(tmp_path / "run", diagnosis=given))


@pytest.fixture
def summary(tmp_path: Path) -> Summary:
    (record,) = read_records(write_record(tmp_path / "run"))
    return replace(summarise(record), step_seconds=0.001, inside_seconds=0.001)


def test_the_largest_part_beside_computing_is_the_limit(summary: Summary) -> None:
    assert limit_of(summary).startswith("60 % of a step cpu:0 waits for cpu:1.")
    assert limit_of(summary, "train.py 3").endswith("Next: evener run --plan auto train.py 3")
    late = replace(summary, step_seconds=0.005)
    assert limit_of(late).startswith("80 % of a step is outside of the step")
    assert limit_of(late, "train.py").endswith(" Next: evener doctor train.py")


def test_devices_that_compute_are_no_limit(summary: Summary) -> None:
    time = DeviceTime(compute=0.9, update=0.05, once=0.0, copy=0.05, wait={}, idle=0.0, length=1.0)
    busy = replace(summary, inside={"cpu:0": time}, step_seconds=1.0, inside_seconds=1.0)
    assert limit_of(busy).startswith("The devices compute for most of the step")
    assert limit_of(busy, "train.py").endswith(" Next: evener bench train.py")
    assert limit_of(replace(summary, inside={})).startswith("Not known")


@pytest.mark.parametrize(
    ("command", "script"),
    [
        (("evener", "run", "--live", "a/train.py", "--lr", "1 2"), "a/train.py --lr '1 2'"),
        (("evener", "run", "-m", "package.train"), "-m package.train"),
        (("evener", "notebook"), ""),
    ],
)
def test_the_script_of_a_record(command: tuple[str, ...], script: str, tmp_path: Path) -> None:
    (record,) = read_records(write_record(tmp_path / "run", command=command))
    assert record.script == script


def span(device: str, *after: int, kind: str = "forward") -> dict[str, object]:
    return {"device": device, "kind": kind, "after": list(after)}


def found(spans: list[dict[str, object]], *times: tuple[int, int]) -> dict[str, list[tuple]]:
    step = {"begin": [begin for begin, _ in times], "end": [end for _, end in times]}
    return {
        device: [(a.kind, round(a.begin * 1e6), round(a.end * 1e6), a.other) for a in row]
        for device, row in activities(spans, step).items()
    }


def test_a_stage_waits_for_the_stage_before_it_and_the_first_one_for_the_last() -> None:
    rows = found([span("a"), span("b", 0)], (0, 10), (12, 30))
    assert rows == {
        "a": [("forward", 0, 10, ""), ("wait", 10, 30, "b")],
        "b": [("wait", 0, 10, "a"), ("copy", 10, 12, "a"), ("forward", 12, 30, "")],
    }


def test_who_came_last_is_waited_for_and_after_its_own_result_nobody() -> None:
    spans = [span("a"), span("b"), span("c"), span("a", 0, 1, 2, kind="update")]
    rows = found(spans, (0, 10), (0, 20), (0, 50), (50, 55))
    assert rows["a"][1] == ("wait", 10, 50, "c")
    spans = [span("a"), span("b"), span("a", 0, 1, kind="update")]
    assert found(spans, (0, 40), (0, 20), (45, 50))["a"][1] == ("idle", 40, 45, "")


def test_a_result_that_was_read_late_ends_a_wait_at_the_task() -> None:
    rows = found([span("a"), span("b", 0)], (0, 30), (20, 40))
    assert rows["b"][0] == ("wait", 0, 20, "a")
    assert rows["a"] == [("forward", 0, 20, ""), ("wait", 20, 40, "b")]


def test_tasks_that_overlap_count_once() -> None:
    row = [Activity(kind="forward", begin=0, end=4), Activity(kind="update", begin=2, end=6)]
    time = time_of(row, 10)
    assert (time.compute, time.update, time.length) == (4, 2, 10)


def test_results_of_other_workers_are_waited_for_with_their_exchange() -> None:
    spans = [span("a"), {**span("a", 0, kind="update"), "joins": True}]
    assert found(spans, (0, 10), (30, 35))["a"][1] == ("wait", 10, 30, "other workers")
