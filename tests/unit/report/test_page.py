from __future__ import annotations

import json
from pathlib import Path

import pytest

from evener.recording.reading import read_records
from evener.report.page import MOST_POINTS, chart, render_page, thinned, ticks, view_of
from unit.recording.samples import FINDING, diagnosis, write_record


def test_each_device_is_drawn_from_the_record_of_its_worker(tmp_path: Path) -> None:
    devices = ["worker:0/cpu:0", "worker:1/cpu:0"]
    for worker in range(2):
        folder = write_record(tmp_path / "job" / f"worker-{worker}", devices=devices)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            line["busy"] = [0.1 if k == worker else None for k in range(2)]
            line["busy"][worker] += 0.5 * worker
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    view = view_of(read_records(tmp_path / "job"))
    (busy,) = [chart for chart in view.charts if chart.title.startswith("Busy")]
    assert [(line.name, line.last) for line in busy.lines] == [
        ("worker:0/cpu:0", "10 %"),
        ("worker:1/cpu:0", "60 %"),
    ]


def page_of(*runs: Path) -> str:
    return render_page([read_records(folder) for folder in runs])


def test_findings_stand_on_the_page_with_their_fix(tmp_path: Path) -> None:
    given = diagnosis(FINDING, num_ignored=1)
    page = page_of(write_record(tmp_path / "run", diagnosis=given))
    for name in ("severity", "code", "location", "what", "why", "fix"):
        assert str(FINDING[name]) in page
    assert "print(float(loss))" in page
    assert "evener doctor --explain DOC-402" in page
    assert "Comments in the program suppress 1." in page


def test_the_page_says_why_there_are_no_findings(tmp_path: Path) -> None:
    assert "The program was not examined." in page_of(write_record(tmp_path / "a"))
    fine = write_record(tmp_path / "b", diagnosis=diagnosis())
    assert "Nothing was found in the program." in page_of(fine)
    given = diagnosis(problem="RunError: no <such> code")
    page = page_of(write_record(tmp_path / "c", diagnosis=given))
    assert "RunError: no &lt;such&gt; code" in page
    assert "Nothing was found" not in page


def test_findings_of_two_runs_are_compared(tmp_path: Path) -> None:
    first = write_record(tmp_path / "first", diagnosis=diagnosis(FINDING))
    mended = write_record(tmp_path / "mended", diagnosis=diagnosis())
    row = '<th scope="row">findings of the doctor</th>'
    changed = f"{row}<td>DOC-402 train.py:7</td><td>none</td>"
    assert changed in page_of(first, mended)
    assert row not in page_of(first, first)


def test_the_page_has_no_control_codes_and_no_secrets(tmp_path: Path) -> None:
    event = {"time": 1.0, "event": "log", "text": "\x1b[2Jcleared\x9b1A <b>"}
    command = ["evener", "run", "train.py", "--token", "1a2b", "\x1b]0;title\x07"]
    page = page_of(
        write_record(
            tmp_path / "run",
            events=[event],
            command=command,
            diagnosis=diagnosis({**FINDING, "evidence": ["x\x08y"]}),
        )
    )
    assert "[2Jcleared1A &lt;b&gt;" in page
    assert "evener run train.py --token [hidden] ]0;title" in page
    assert "xy" in page
    assert not [code for code in page if ord(code) in (*range(9), *range(11, 32), *range(127, 160))]


def test_the_verdict_and_the_script_are_on_top(tmp_path: Path) -> None:
    page = page_of(write_record(tmp_path / "7"))
    assert "<title>evener report: train.py (7)</title>" in page
    assert "<h2>train.py (7)</h2>" in page
    verdict = page.index("is outside of the step: input data")
    assert verdict < page.index("Where the time of a step goes")
    assert "Next: evener doctor train.py" in page


def test_bars_of_all_workers_have_one_scale_and_an_axis(tmp_path: Path) -> None:
    for worker, times in enumerate((((0, 500),), ((0, 2000),))):
        folder = tmp_path / "job" / f"worker-{worker}"
        device = f"worker:{worker}/cpu:0"
        spans = [{"device": device, "kind": "forward + backward", "replica": 0, "after": []}]
        write_record(folder, devices=[device], spans=spans, times=times)
    view = view_of(read_records(tmp_path / "job"))
    timelines = [worker.timeline for worker in view.workers]
    assert [t and [row.bars[0].width for row in t.rows] for t in timelines] == [[250.0], [1000.0]]
    assert [t and t.length for t in timelines] == ["500 µs", "2.0 ms"]
    assert [t and [tick.text for tick in t.x_ticks] for t in timelines] == 2 * [
        ["0", "500 µs", "1.0 ms", "1.5 ms", "2.0 ms"]
    ]


def test_what_was_not_measured_has_no_table_and_dotted_lines_have_a_legend(tmp_path: Path) -> None:
    shares = {"time": 1.0, "event": "shares", "text": "step 40: shares 50 : 50 -> 80 : 20 %"}
    memory = {"time": 2.0, "event": "memory", "bytes": {"cpu:0": 2**20}}
    page = page_of(write_record(tmp_path / "run", events=[shares, memory]))
    assert "Predicted and measured" not in page
    assert page.count("dotted: shares change") == 3
    assert "dotted: shares change" not in page_of(write_record(tmp_path / "quiet"))


def test_changes_of_shares_are_counted(tmp_path: Path) -> None:
    changes = [
        {"time": at, "event": "shares", "text": "", "step": 8 * at, "after": [share, 1 - share]}
        for at, share in ((1, 0.8), (15, 0.62))
    ]
    page = page_of(write_record(tmp_path / "run", events=changes))
    assert "changed 2 times; settled at 62:38 after 120 steps" in page


def made(points: list[tuple[float, float | None]], **more: object):
    return chart("loss", [("loss", points)], seconds=10.0, text=str, **more)  # type: ignore[arg-type]


def test_a_line_runs_from_corner_to_corner_with_gaps_where_nothing_is_known() -> None:
    found = made([(0.0, 0.0), (5.0, 1.0), (10.0, 2.0)])
    assert found is not None
    assert found.lines[0].path == "M0 200 L500 100 L1000 0"
    assert [(tick.percent, tick.text) for tick in found.y_ticks][-1] == (0.0, "2.0")
    found = made([(0.0, 1.0), (5.0, None), (10.0, 1.0)])
    assert found is not None
    assert found.lines[0].path == "M0 0 M1000 0"
    assert found.lines[0].last == "1.0"


def test_a_single_value_is_drawn_and_none_is_no_chart() -> None:
    found = made([(5.0, 3.0)], from_zero=False)
    assert found is not None
    assert found.lines[0].path.endswith("h0")
    assert made([(0.0, None)]) is None
    assert made([]) is None


def test_long_series_are_thinned_by_their_means() -> None:
    points = [(float(k), float(k % 2)) for k in range(10_000)]
    found = thinned(points)
    assert len(found) <= MOST_POINTS
    assert found[0][1] == pytest.approx(0.5)


@pytest.mark.parametrize(("low", "high"), [(0, 1e-9), (0, 7e12), (-3, 5), (2, 2), (0.1, 0.11)])
def test_ticks_are_within_their_range(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 1 <= len(found) <= 6
    assert all(low - 1e-12 <= tick <= high * (1 + 1e-9) for tick in found)
