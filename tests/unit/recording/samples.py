"""Records of runs that never were, written as a run writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evener.plan import Plan

SPANS = [
    {"device": "cpu:0", "kind": "forward + backward", "replica": 0, "after": []},
    {"device": "cpu:1", "kind": "forward + backward", "replica": 1, "after": []},
    {"device": "cpu:0", "kind": "update", "after": [0, 1]},
]


FINDING = {
    "code": "DOC-402",
    "severity": "warning",
    "location": "train.py:7",
    "file": "/tmp/train.py",
    "line": 7,
    "what": "every step copies a number to the host.",
    "why": "The devices wait for Python.",
    "fix": "print it once an epoch",
    "evidence": ["print(float(loss))"],
}


def diagnosis(*findings: Mapping[str, Any], num_ignored: int = 0, problem: str = "") -> Any:
    return {"findings": list(findings), "num_ignored": num_ignored, "problem": problem}


def lines(*fields: Mapping[str, Any]) -> str:
    return "".join(json.dumps(line) + "\n" for line in fields)


def write_record(
    folder: Path,
    *,
    devices: Sequence[str] = ("cpu:0", "cpu:1"),
    command: Sequence[str] = ("evener", "run", "train.py"),
    version: int = 1,
    events: Sequence[Mapping[str, Any]] = ({"time": 9.0, "event": "end", "text": "the run ended"},),
    num_lines: int = 10,
    spans: Sequence[Mapping[str, Any]] = SPANS,
    times: Sequence[tuple[int, int]] = ((0, 200), (0, 800), (900, 1000)),
    num_steps: int = 4,
    diagnosis: Mapping[str, Any] | None = None,
) -> Path:
    """Write a record of some lines, with steps of the same times; return its folder."""
    folder.mkdir(parents=True)
    description = {
        "version": version,
        "began": "2026-01-02T03:04:05+00:00",
        "command": list(command),
        "versions": {"evener": "0.1.0", "tensorflow": "2.21.0", "keras": "3.15.1", "python": "3"},
        "devices": list(devices),
        "plan": json.loads(Plan.data_parallel(list(devices)).to_json()),
        "inventory": {},
        "diagnosis": diagnosis,
    }
    metrics = [
        {
            "time": float(k),
            "samples": 100 * k,
            "samples_per_second": 100.0,
            "step_seconds": 0.005,
            "share": [round(1 / len(devices), 4)] * len(devices),
            "busy": [0.5] * len(devices),
            "memory": [None] * len(devices),
            "memory_peak": [None] * len(devices),
            "process_bytes": 10**9,
        }
        for k in range(num_lines)
    ]
    losses = [
        {"time": float(k), "epoch": k, "values": {"loss": round(math.exp(-k / 5), 5)}}
        for k in range(num_lines)
    ]
    step = {"begin": [begin for begin, _ in times], "end": [end for _, end in times]}
    steps = [{"time": float(k), "step": k, "of": 0, **step} for k in range(num_steps)]
    (folder / "record.json").write_text(json.dumps(description))
    (folder / "events.jsonl").write_text(lines(*events))
    (folder / "metrics.jsonl").write_text(lines(*metrics))
    (folder / "losses.jsonl").write_text(lines(*losses))
    (folder / "steps.jsonl").write_text(lines({"trace": 0, "spans": list(spans)}, *steps))
    return folder
