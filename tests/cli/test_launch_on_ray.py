"""`evener launch --ray`, as a person would call it, on a cluster of two nodes."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cli.commands import run
from cli.test_launch import SCRIPT, assert_equal
from unit.workers.on_ray.ray_nodes import RayNodes, running_nodes


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with running_nodes(2) as nodes:
        yield nodes


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_worker_that_is_killed_costs_nothing(nodes: RayNodes, tmp_path: Path) -> None:
    """Its prints appear once, and the numbers are those of one device."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    words = ["launch", "--ray", nodes.address, "--workers", "2", "--logs", "logs"]
    words += ["--devices", "cpu:2", "--devices", "cpu:1"]
    done = run(*words, "train.py", "both.npz", "-", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if "Epoch" in line] == [
        f"Epoch {epoch}/3" for epoch in (1, 2, 3)
    ]
    assert done.stdout.splitlines()[-1] == "saved"
    assert "worker 1 was ended by SIGKILL; it is started again" in done.stderr
    logs = sorted((tmp_path / "logs").iterdir())
    assert [path.name for path in logs] == [f"worker-{index}.log" for index in range(2)]
    assert "--- worker 1, incarnation 1, process " in logs[1].read_text(encoding="utf-8")
    ended = run("run", "--devices", "cpu:1", "train.py", "one.npz", "-", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert_equal(tmp_path / "both.npz", list(np.load(tmp_path / "one.npz").values()))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_workers_that_no_node_has_a_place_for(nodes: RayNodes, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    words = ["launch", "--ray", nodes.address, "--workers", "2", "--ray-resources", "GPU=9"]
    done = run(*words, "train.py", folder=tmp_path, EVENER_START_SECONDS="0.5")
    assert done.returncode == 2
    assert "within 0.5 seconds: 2 workers with CPU=1,GPU=9." in done.stderr
    assert "[RUN-087]" in done.stderr
    assert "they need 18 GPU in all, and the cluster has 4" in done.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_signal_ends_the_wait_for_places(nodes: RayNodes, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    words = [sys.executable, "-m", "evener", "launch", "--ray", nodes.address, "--workers", "2"]
    started = subprocess.Popen(
        [*words, "--ray-resources", "GPU=9", "train.py"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stderr is not None
    try:
        while "waiting for places" not in started.stderr.readline():
            pass
        started.send_signal(signal.SIGTERM)
        assert started.wait(timeout=60) == 143
    finally:
        started.kill()
        started.communicate()


def test_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    with socket.socket() as bound:
        # Nobody listens at it.
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        words = ["launch", "--ray", address, "--workers", "2", "train.py"]
        done = run(*words, folder=tmp_path)
    assert done.returncode == 2
    assert f"[RUN-086] No Ray cluster at {address} can be joined." in done.stderr
    assert "Connection refused" in done.stderr
    assert done.stdout == ""
