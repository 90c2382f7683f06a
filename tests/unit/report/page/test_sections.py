from __future__ import annotations

import json
from pathlib import Path

from evener.recording.reading import read_records
from evener.report.page.sections import view_of
from unit.recording.samples import write_record


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
