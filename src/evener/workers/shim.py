"""Runs a command that the kernel kills when its parent dies.

Usage: ``python -I -S shim.py PARENT PROGRAM [ARGS]...``. It imports the standard library only: it
is run by its path. The parent has to start it in a thread that lives as long as the parent, since
the kernel means the thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    """Replace this process by the command, a program by its path or its name, and arguments."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It died before the kernel was asked.
        sys.exit(1)
    # Python ignores these, and the program would inherit that.
    for name in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
