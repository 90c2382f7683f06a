"""A folder whose changes vanish: an overlay in a private mount, which ends with its processes.

    current folder  <- read -   overlay   <- program
    memory          <- write -

It needs namespaces of users and mounts, which Linux allows on most machines.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from evener.errors import RunError

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_TRY_SECONDS = 20.0


def enter(folder: str, kept: str) -> None:
    """Let what this process and its children write below a folder vanish when they end.

    Call it while the process has one thread.

    Raises:
        OSError: If the system does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    _call(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "unshare")
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    _mount(libc, "none", "/", None, _MS_REC | _MS_PRIVATE, "")
    outside = os.open(kept, os.O_PATH | os.O_DIRECTORY)
    # What the overlay stores lies in a memory file system that no other process sees.
    space = f"{kept}/sandbox"
    Path(space).mkdir()
    _mount(libc, "tmpfs", space, "tmpfs", 0, "")
    for name in ("changes", "work"):
        Path(space, name).mkdir()
    below = folder.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
    options = f"userxattr,lowerdir={below},upperdir={space}/changes,workdir={space}/work"
    _mount(libc, "overlay", folder, "overlay", 0, options)
    if Path(kept).is_relative_to(folder):
        _mount(libc, f"/proc/self/fd/{outside}", kept, None, _MS_BIND, "")
    os.close(outside)
    os.chdir(folder)


def check() -> None:
    """Try in a process of its own whether the system has sandboxes.

    Raises:
        RunError: RUN-025 if it has none.
    """
    root = str(Path(__file__).parents[3])
    code = (
        "import sys; root, *folders = sys.argv[1:]; sys.path.append(root)\n"
        "from evener.doctor.watch.sandbox import enter; enter(*folders)\n"
    )
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as kept:
        tried = subprocess.run(
            [sys.executable, "-c", code, root, folder, kept],
            capture_output=True,
            text=True,
            timeout=_TRY_SECONDS,
            check=False,
        )
    if tried.returncode:
        said = tried.stderr.strip().splitlines()[-1:] or ["no reason is given"]
        raise RunError(
            "RUN-025",
            "This system has no sandbox for the program.",
            why=f"A private mount needs namespaces of users: {said[0]}.",
            fix="Leave out --sandbox, run it in a copy of the folder, or read only with --no-run.",
        )


def _mount(
    libc: ctypes.CDLL, source: str, target: str, kind: str | None, flags: int, options: str
) -> None:
    arguments = [part if part is None else part.encode() for part in (source, target, kind)]
    _call(libc.mount(*arguments, ctypes.c_ulong(flags), options.encode()), f"mount {target}")


def _call(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
