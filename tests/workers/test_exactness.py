"""Steps of the corpus on several workers of unlike devices, against one device.

The workers are processes on this machine; each has its own devices, and all have the same bits.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exactness.steps.case import CASES
from exactness.steps.runs import differ

PROGRAM = Path(__file__).parent / "worker.py"
# Sums, a maximum, statistics of the batch, and rows whose order counts.
SMALL = (
    "contrastive/byol",
    "losses/largest",
    "vision/batchnorm_of_dense_and_of_sequences",
    "evaluation/worst_samples_of_the_batch",
    # An expert without samples has tensors without elements.
    "experts/partitioned_and_stitched",
)
EVERY = 36


def free_addresses(count: int) -> list[str]:
    """Return addresses of this machine whose ports, and the ones behind them, are free now.

    The coordinator listens behind the port of the first worker.
    """
    opened: list[socket.socket] = []
    ports: list[int] = []
    while len(ports) < count:
        first, second = socket.socket(), socket.socket()
        opened += [first, second]
        first.bind(("127.0.0.1", 0))
        port = first.getsockname()[1]
        with contextlib.suppress(OSError, OverflowError):
            second.bind(("127.0.0.1", port + 1))
            ports.append(port)
    for each in opened:
        each.close()
    return [f"127.0.0.1:{port}" for port in ports]


def run(
    names: Sequence[str],
    shares: Sequence[float],
    per_worker: Sequence[int],
    folder: Path,
    program: Path = PROGRAM,
    exchange: str = "mesh",
) -> list[list[list[np.ndarray]]]:
    """Return the arrays of every step, on one device and then on each worker."""
    options = {"names": list(names), "shares": list(shares), "folder": str(folder)}
    indices: list[Any] = [None, *range(len(per_worker))]
    cluster = {"worker": free_addresses(len(per_worker))}
    path = os.pathsep.join(sys.path)
    processes = []
    for index in indices:
        environ = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
        if index is not None:
            task = {"type": "worker", "index": index}
            environ["EVENER_EXCHANGE"] = exchange
            environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
        count = 1 if index is None else per_worker[index]
        argument = json.dumps({**options, "index": index, "devices": count})
        processes.append(
            subprocess.Popen(
                [sys.executable, str(program), argument],
                env=environ,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        for process in processes:
            _, problem = process.communicate(timeout=300)
            assert process.returncode == 0, problem[-3000:]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return [
        [
            list(np.load(folder / f"{index}_{number}.npz", allow_pickle=False).values())
            for index in indices
        ]
        for number in range(len(names))
    ]


def hold(
    name: str, expected: Sequence[np.ndarray], found: Sequence[np.ndarray], tolerance: float
) -> None:
    for one_device, worker in zip(expected, found, strict=True):
        if worker.dtype.kind not in "fc":
            np.testing.assert_array_equal(worker, one_device, err_msg=name)
            continue
        scale = max(1.0, float(np.abs(one_device).max(initial=0.0)))
        np.testing.assert_allclose(worker, one_device, rtol=0, atol=tolerance * scale, err_msg=name)


def check(
    names: Sequence[str],
    shares: Sequence[float],
    per_worker: Sequence[int],
    folder: Path,
    exchange: str,
) -> None:
    """Compare each step on workers with one device, and the workers with each other, to the bit."""
    found = run(names, shares, per_worker, folder, exchange=exchange)
    for name, (expected, first, *others) in zip(names, found, strict=True):
        hold(name, expected, first, CASES[name]().tolerance)
        assert not any(differ(first, other) for other in others), name


@pytest.mark.long
@pytest.mark.parametrize("exchange", ["mesh", "tensorflow"])
def test_three_workers_of_unlike_devices(exchange: str, tmp_path: Path) -> None:
    check(SMALL, [5, 3, 8, 3], [1, 2, 1], tmp_path, exchange)


@pytest.mark.long
@pytest.mark.parametrize("exchange", ["mesh", "tensorflow"])
def test_corpus(exchange: str, tmp_path: Path) -> None:
    """A worker without samples in small batches, and one with two devices."""
    first = ["mesh", "tensorflow"].index(exchange)
    check(sorted(CASES)[first * EVERY // 2 :: EVERY], [5, 0.3, 8], [1, 2], tmp_path, exchange)
