"""`evener report`, and `--record` of the commands that run scripts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.commands import environment
from cli.forked import Run as RunForked
from evener.cli import app
from evener.errors import RunError
from evener.recording.reading import read_records, summarise
from unit.recording.samples import write_record

SCRIPT = """
import sys
import keras
import numpy as np
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(np.ones((64, 8)), np.ones((64, 1)), batch_size=16, epochs=3, verbose=0)
for row in np.ones((2, 8)):
    model.predict(row[None], verbose=0)
if "fail" in sys.argv:
    raise ZeroDivisionError("at the end")
"""


def test_the_page_is_in_the_folder_of_the_run_or_is_one_of_several(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run")
    done = CliRunner().invoke(app, ["report", str(folder)])
    assert done.exit_code == 0
    assert done.output == f"{folder / 'report.html'}\n"
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "waits for cpu:1" in page
    both, other = tmp_path / "both.html", write_record(tmp_path / "other")
    words = ["report", str(folder), str(other), "--out", str(both)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert both.read_text(encoding="utf-8").count("<article") == 2


def refuse(self: Path, data: bytes) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("code", "fix"), [("RUN-103", ""), ("RUN-106", ""), ("RUN-107", "pip install evener[trace]")]
)
def test_what_keeps_the_page_from_being_written(
    code: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record is there, the disk is full, or the package of traces is missing."""
    folder = tmp_path if code == "RUN-103" else write_record(tmp_path / "run")
    if code == "RUN-106":
        monkeypatch.setattr(Path, "write_bytes", refuse)
    monkeypatch.setitem(sys.modules, "perfetto.trace_builder.proto_builder", None)
    trace = ["--trace", str(tmp_path / "t")] if code == "RUN-107" else []
    done = CliRunner().invoke(app, ["report", str(folder), *trace])
    assert isinstance(done.exception, RunError)
    assert done.exception.code == code
    assert fix in done.exception.fix


def test_figures_are_printed_as_json_without_tensorflow(tmp_path: Path, run_python) -> None:
    folder = write_record(tmp_path / "run")
    done = run_python(f"""
        import sys
        from typer.testing import CliRunner
        from evener.cli import app
        print(CliRunner().invoke(app, ["report", {str(folder)!r}, "--json"]).output, end="")
        assert CliRunner().invoke(app, ["report", {str(folder)!r}]).exit_code == 0
        assert "tensorflow" not in sys.modules
    """)
    figures = json.loads(done.stdout)
    assert figures["num_samples"] == 900
    assert figures["inside"]["cpu:0"]["wait"] == {"cpu:1": pytest.approx(600e-6)}


@pytest.mark.parametrize("more", [["--json"], ["--out", "x.html"], ["OTHER"]])
def test_a_trace_is_of_one_run_and_alone(tmp_path: Path, more: list[str]) -> None:
    folder = str(write_record(tmp_path / "run"))
    more = [folder if word == "OTHER" else word for word in more]
    done = CliRunner().invoke(app, ["report", folder, *more, "--trace", str(tmp_path / "t")])
    assert done.exit_code == 2


def test_a_trace_has_the_tasks_the_waits_and_the_counters(tmp_path: Path) -> None:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

    folder, file = write_record(tmp_path / "run"), tmp_path / "run.pftrace"
    assert CliRunner().invoke(app, ["report", str(folder), "--trace", str(file)]).exit_code == 0
    trace = Trace.FromString(file.read_bytes())
    tracks = {
        packet.track_descriptor.uuid: packet.track_descriptor.name
        for packet in trace.packet
        if packet.HasField("track_descriptor")
    }
    assert {"cpu:0", "cpu:1", "samples_per_second", "share cpu:1"} <= set(tracks.values())
    slices: dict[str, list[tuple[str, int, int]]] = {}
    begun: dict[int, tuple[str, int]] = {}
    for packet in trace.packet:
        event = packet.track_event
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            assert event.track_uuid not in begun
            begun[event.track_uuid] = event.name, packet.timestamp
        if event.type == TrackEvent.TYPE_SLICE_END:
            name, begin = begun.pop(event.track_uuid)
            found = name, begin, packet.timestamp
            slices.setdefault(tracks[event.track_uuid], []).append(found)
    assert begun == {}
    assert [(name, end - begin) for name, begin, end in slices["cpu:0"][:4]] == [
        ("forward + backward", 200_000),
        ("waits for cpu:1", 600_000),
        ("copy from cpu:1", 100_000),
        ("update", 100_000),
    ]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("words", [(), ("fail",)])
def test_a_script_is_recorded_to_its_end(
    run_forked: RunForked, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    folder = tmp_path / "record"
    done = run_forked(
        "evener", "run", "--devices", "cpu:2", "--record", str(folder),
        str(tmp_path / "train.py"), *words,
    )  # fmt: skip
    assert done.returncode == (1 if words else 0), done.stderr
    (record,) = read_records(folder)
    summary = summarise(record)
    assert (summary.state, summary.num_samples) == ("failed" if words else "ended", 192)
    assert record.command[:2] == ("evener", "run")
    assert {"cpu:0", "cpu:1"} == set(summary.inside)
    notes = [event["text"] for event in record.events if event["event"] == "note"]
    assert any("this model trains on" in note for note in notes)
    assert record.diagnosis is not None
    # It has no strategy (DOC-201), which evener gives it.
    assert [finding.code for finding in record.diagnosis.findings] == ["DOC-408"]


LONG_SCRIPT = """
import keras
import numpy as np
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(np.ones((64, 8)), np.ones((64, 1)), batch_size=16, epochs=EPOCHS, verbose=0)
"""


def started(folder: Path, epochs: int, *words: str) -> subprocess.Popen[bytes]:
    (folder / "train.py").write_text(LONG_SCRIPT.replace("EPOCHS", str(epochs)))
    return subprocess.Popen(
        [sys.executable, "-m", "evener", *words, str(folder / "train.py")],
        env=environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.long
def test_a_run_that_is_killed_leaves_its_record(tmp_path: Path) -> None:
    folder = tmp_path / "record"
    run = started(tmp_path, 10**6, "run", "--devices", "cpu:2", "--record", str(folder))
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and run.poll() is None:
            steps = folder / "steps.jsonl"
            if steps.exists() and len(steps.read_text().splitlines()) > 2:
                break
            time.sleep(0.2)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert run.returncode == -signal.SIGKILL
    (record,) = read_records(folder)
    summary = summarise(record)
    assert summary.state == "no end"
    assert (summary.num_samples or 0) > 0
    assert summary.num_steps >= 1
    assert CliRunner().invoke(app, ["report", str(folder)]).exit_code == 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "no end: it runs, or was killed" in page


@pytest.mark.long
def test_each_worker_has_a_record_and_all_are_one_page(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    words = ["launch", "--workers", "2", "--devices", "cpu:1", "--record", str(folder)]
    logs = tmp_path / "logs"
    assert started(tmp_path, 20, *words, "--log-dir", str(logs)).wait(timeout=240) == 0
    tables = [logs / f"worker-{k}" / "fit_1" / "epochs.csv" for k in range(2)]
    heads = [table.read_text(encoding="utf-8").partition("\n")[0] for table in tables]
    for own, head in enumerate(heads):
        busy = [f"worker:{k}/cpu:0/busy" in head for k in range(2)]
        assert busy == [k == own for k in range(2)]
    first, second = read_records(folder)
    assert [record.path.name for record in (first, second)] == ["worker-0", "worker-1"]
    assert summarise(first).losses == summarise(second).losses
    assert first.devices == ("worker:0/cpu:0", "worker:1/cpu:0")
    assert set(summarise(second).inside) == {"worker:1/cpu:0"}
    assert first.diagnosis is not None
    assert second.diagnosis is None
    (spans,) = first.traces.values()
    assert any(span.get("joins") for span in spans if span["kind"] == "update")
    assert CliRunner().invoke(app, ["report", str(folder)]).exit_code == 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "worker-1: A typical step" in page
    assert "waits for other workers" in page
