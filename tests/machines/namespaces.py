"""Machines that are network namespaces of this one: addresses, cables and speeds of their own.

::

    machine 0            machine 1            machine 2
    10.77.0.1            10.77.0.2            10.77.0.3
        │ cable              │                    │
    ────┴────────────────────┴────────────────────┴────   bridge in a namespace of its own

It needs root. A cable is a pair of virtual devices with a limit of bytes per second; a machine may
have a part of a core.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Jobs beside each other have machines of their own.
_PREFIX = f"evener-{os.getpid()}"
_SWITCH = f"{_PREFIX}-switch"
_GROUPS = Path("/sys/fs/cgroup/cpu")
_PERIOD = 100_000


def missing() -> str:
    """Return why there can be no namespaces here, or an empty text."""
    if os.geteuid():
        return "network namespaces need root"
    lacking = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    try:
        with machines(1):
            return ""
    except RuntimeError as error:
        return f"no machine can be made: {error}"


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Machine:
    """A namespace with one cable."""

    number: int

    @property
    def name(self) -> str:
        """Name of the namespace, and of the machine for the others."""
        return f"{_PREFIX}-{self.number}"

    @property
    def address(self) -> str:
        """Address at its cable."""
        return f"10.77.0.{self.number + 1}"

    @property
    def _port(self) -> str:
        return f"port{self.number}"

    def start(self, words: Sequence[str], *, environ: Mapping[str, str], output: Path) -> Any:
        """Start a process of this machine."""
        # Processes of other machines are not there: nobody reads the memory of another worker.
        own = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        words = ["ip", "netns", "exec", self.name, *own, *words]
        group = _GROUPS / self.name / "cgroup.procs"
        if group.exists():
            # Before the namespace hides the groups.
            words = ["sh", "-c", f'echo $$ > {group}; exec "$@"', "sh", *words]
        with output.open("a") as file:
            return subprocess.Popen(
                words,
                env=dict(environ),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def plug(self, *, is_in: bool) -> None:
        """Plug the cable in, or out."""
        _run("ip", "-n", _SWITCH, "link", "set", self._port, "up" if is_in else "down")

    def limit(self, megabits: float = 1000.0) -> None:
        """Let the cable carry so many Mb/s, in each direction."""
        for namespace, device in ((self.name, "eth0"), (_SWITCH, self._port)):
            shape = ["root", "tbf", "rate", f"{megabits}mbit", "burst", "128kb", "latency", "100ms"]
            _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, *shape)

    def hear_nothing(self) -> None:
        """Lose all that comes in, while what is sent arrives; until the next `limit`."""
        _run("tc", "-n", _SWITCH, "qdisc", "replace", "dev", self._port, *_NOTHING)


_NOTHING = ["root", "tbf", "rate", "8bit", "burst", "1", "limit", "1"]
"""A limit that no packet passes."""


@contextlib.contextmanager
def machines(count: int, *, cores: Sequence[float] = ()) -> Iterator[list[Machine]]:
    """Make machines, with these parts of a core, and take them down at the end."""
    made = [Machine(number) for number in range(count)]
    _take_down(made)
    try:
        _run("ip", "netns", "add", _SWITCH)
        _run("ip", "-n", _SWITCH, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", _SWITCH, "link", "set", "bridge", "up")
        for machine in made:
            _run("ip", "netns", "add", machine.name)
            _run("ip", "-n", machine.name, "link", "set", "lo", "up")
            pair = ["eth0", "netns", machine.name, "type", "veth", "peer", "name"]
            _run("ip", "link", "add", *pair, machine._port, "netns", _SWITCH)
            _run("ip", "-n", _SWITCH, "link", "set", machine._port, "master", "bridge", "up")
            _run("ip", "-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", "eth0")
            _run("ip", "-n", machine.name, "link", "set", "eth0", "up")
            machine.limit()
        for machine, part in zip(made, cores, strict=False):
            group = _GROUPS / machine.name
            group.mkdir(exist_ok=True)
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(int(part * _PERIOD)))
        yield made
    finally:
        _take_down(made)


def _take_down(made: Sequence[Machine]) -> None:
    existing = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    for name in (*(machine.name for machine in made), _SWITCH):
        if name in existing.split():
            for process in _run("ip", "netns", "pids", name).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), 9)
            _run("ip", "netns", "delete", name)
        with contextlib.suppress(OSError):
            (_GROUPS / name).rmdir()
