"""Nodes of a Ray cluster on this machine, for tests."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from unit.workers.conftest import wait_for_end

LONGEST_SECONDS = 120
_MOST_STARTS = 3
_ADDRESS = re.compile(r"--address='([^']+)'")


@contextlib.contextmanager
def running_nodes(count: int) -> Iterator[RayNodes]:
    """A cluster of some nodes; its processes have ended behind the block."""
    nodes = RayNodes()
    try:
        for _ in range(count):
            nodes.add()
        yield nodes
    finally:
        nodes.close()


class RayNodes:
    """Starts the head of a cluster without CPUs, and nodes with a CPU and two GPUs each.

    The GPUs are Ray's numbers alone; no device need be there.
    """

    def __init__(self) -> None:
        # A path of a socket has at most 107 bytes, so that of pytest is too long.
        self._folder = Path(tempfile.mkdtemp(prefix="evener-ray-", dir="/tmp"))
        self._nodes: list[subprocess.Popen[str]] = []
        self.address = "?"
        try:
            self._start(
                "--head",
                "--port=0",
                "--num-cpus=0",
                "--include-dashboard=false",
                f"--temp-dir={self._folder}",
            )
        except BaseException:
            self.close()
            raise

    def add(self) -> subprocess.Popen[str]:
        """Add a node, whose process is that of `ray start`."""
        return self._start(f"--address={self.address}", "--num-cpus=1", "--num-gpus=2")

    def processes(self) -> list[int]:
        """Return all processes of the cluster that live."""
        found: list[int] = []
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes()
                environ = (process / "environ").read_bytes()
                if str(self._folder).encode() in words + environ:
                    found.append(int(process.name))
        return [pid for pid in found if pid != os.getpid()]

    def close(self) -> None:
        """End all nodes, the last first; fail if a process is left behind."""
        for node in reversed(self._nodes):
            node.terminate()
            node.communicate(timeout=LONGEST_SECONDS)
        left = self.processes()
        try:
            wait_for_end(*left)
        finally:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(self._folder)

    def _start(self, *options: str) -> subprocess.Popen[str]:
        printed = ""
        # On a busy machine a node gives up: Ray's limit of 30 seconds cannot be set.
        for _ in range(_MOST_STARTS):
            node, printed = self._start_once(options)
            if node is not None:
                return node
        raise AssertionError(f"Ray has not started:\n{printed}")

    def _start_once(self, options: Sequence[str]) -> tuple[subprocess.Popen[str] | None, str]:
        """Return a node, or None if it has ended, and what it printed."""
        node = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("ray")),
                "start",
                "--block",
                "--disable-usage-stats",
                *options,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "EVENER_TEST_FOLDER": str(self._folder)},
        )
        self._nodes.append(node)
        assert node.stdout is not None
        printed = ""
        for line in node.stdout:
            printed += line
            found = _ADDRESS.search(line)
            if found and self.address == "?":
                self.address = found[1]
            # The last words before it blocks.
            if "--block" in line:
                return node, printed
        return None, printed
