"""The process of a worker on a node, without Ray."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evener.errors import RunError
from evener.workers.on_ray import NodePlace, NodeWorker, node_environ
from evener.workers.output import Stream

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
    lines, code = rest(worker, 2)
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
