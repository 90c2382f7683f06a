"""A command that dies with its parent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from evener.workers import guard
from unit.workers.conftest import wait_for_end

SHIM = [sys.executable, "-I", "-S", str(Path(guard.__file__)), "run"]
PARENT = """
import os, signal, subprocess, sys
*shim, script = sys.argv[1:]
child = subprocess.Popen([*shim, str(os.getpid()), sys.executable, "-c", script])
signal.pause()
"""


def test_the_command_is_killed_with_its_parent() -> None:
    script = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, *SHIM, script], stdout=subprocess.PIPE, text=True
    ) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
        wait_for_end(child)


def test_the_command_is_not_run_without_its_parent() -> None:
    not_the_parent = str(os.getppid())
    done = subprocess.run([*SHIM, not_the_parent, "echo", "ran"], stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (1, b"")


def test_the_command_does_not_ignore_what_python_ignores() -> None:
    shell = ["sh", "-c", "kill -PIPE $$; echo survived"]
    done = subprocess.run([*SHIM, str(os.getpid()), *shell], stdout=subprocess.PIPE)
    assert done.stdout == b""
