"""Jobs of small scripts, and the processes in them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import evener

SOURCE = Path(evener.__file__).parents[1]
LONGEST_SECONDS = 60
# What every script of a test begins with.
BEGIN = """
import os, signal, subprocess, sys
index, incarnation = int(os.environ["INDEX"]), int(os.environ["INCARNATION"])
def tell(*words):
    with open(os.environ["NEWS"], "a") as file:
        print(index, incarnation, *words, file=file)
"""


class StartedJob:
    """A supervisor in a process of its own, with a pipe in which its workers tell news."""

    def __init__(self, folder: Path, scripts: list[str], **settings: object) -> None:
        news = folder / "news"
        os.mkfifo(news)
        # For writing too: there is no end of the file while no worker writes.
        self._news = os.fdopen(os.open(news, os.O_RDWR), "r")
        self.logs = folder
        given = {
            "scripts": [BEGIN + textwrap.dedent(script) for script in scripts],
            "logs": str(folder),
            "error_wait_seconds": 0.3,
            **settings,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("supervised.py")), json.dumps(given)],
            env={**os.environ, "PYTHONPATH": str(SOURCE), "NEWS": str(news)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def news(self) -> list[str]:
        """Return the words of the next news."""
        return self._news.readline().split()

    def lose(self, *words: object) -> None:
        print(*words, file=self.process.stdin, flush=True)

    def join(self, *workers: int) -> None:
        """Tell that workers have joined, and wait until that is heard."""
        self.lose("joined", *workers)
        assert self.news() == ["heard"]

    def agree(self) -> None:
        """Tell that all workers have left, and wait until that is heard."""
        self.lose("agreed")
        assert self.news() == ["heard"]

    def end(self) -> tuple[int, str, str]:
        """Wait for the end, and return the exit code and both outputs."""
        stdout, stderr = self.process.communicate(timeout=LONGEST_SECONDS)
        return self.process.returncode, stdout, stderr

    def finish(self, *pids: int) -> tuple[str, str]:
        """Let workers finish by SIGUSR1, and return both outputs of the job, which ends well."""
        for pid in pids:
            os.kill(pid, signal.SIGUSR1)
        code, stdout, stderr = self.end()
        assert code == 0, stderr
        return stdout, stderr

    def log(self, index: int) -> str:
        return (self.logs / f"worker-{index}.log").read_text(encoding="utf-8")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._news.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., StartedJob]]:
    jobs: list[StartedJob] = []

    def start(*scripts: str, **settings: object) -> StartedJob:
        jobs.append(StartedJob(tmp_path, list(scripts), **settings))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


def wait_for_end(*pids: int) -> None:
    """Wait until processes have ended, whoever their parents are."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ready, _, _ = select.select([descriptor], [], [], LONGEST_SECONDS)
        os.close(descriptor)
        assert ready, f"process {pid} is left behind"
