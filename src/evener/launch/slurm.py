"""``TF_CONFIG`` of a task of Slurm, from its environment.

The addresses are those of `tf.distribute.cluster_resolver.SlurmClusterResolver`: a port base, plus
the number of the task on its host. They differ in one thing: hosts keep the order of Slurm's list,
in which Slurm numbers the tasks. TensorFlow sorts them by name: ``n10`` comes before ``n9``.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping

from evener.errors import RunError

PORT_BASE = 8888
LARGEST_PORT = 65535
_PART = re.compile(r"[^,\[\]]|\[[^\[\]]+\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def is_slurm_task(environ: Mapping[str, str]) -> bool:
    """Return whether the environment is that of a task of Slurm."""
    return "SLURM_PROCID" in environ


def slurm_tf_config(environ: Mapping[str, str], *, port_base: int = PORT_BASE) -> str | None:
    """Return ``TF_CONFIG`` for this task, or None if it is the only one.

    ``port_base`` is the port of the first task of every host. RUN-081 if a variable is missing or
    cannot be read, RUN-082 if the tasks are not numbered host by host.
    """
    rank = _number(environ, "SLURM_PROCID")
    count = _number(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if count == 1:
        return None
    addresses = _addresses(environ, port_base)
    if len(addresses) != count or rank >= count:
        raise _unreadable(
            f"this is task {rank} of {count}, and the lists of hosts and tasks have "
            f"{len(addresses)} tasks"
        )
    host = addresses[rank].rpartition(":")[0]
    own = environ.get("SLURMD_NODENAME", host)
    if own != host:
        raise RunError(
            "RUN-082",
            f"Slurm runs task {rank} on {own}; numbered host by host, it would be on {host}.",
            why="every worker derives the addresses of all others from their numbers.",
            fix="Pass --distribution=block to srun or sbatch.",
        )
    task = {"type": "worker", "index": rank}
    return json.dumps({"cluster": {"worker": addresses}, "task": task})


def _addresses(environ: Mapping[str, str], port_base: int) -> list[str]:
    names = "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"
    hosts = expand_hosts(_text(environ, *names))
    counts = expand_tasks(_text(environ, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    if len(hosts) != len(counts):
        raise _unreadable(f"it lists {len(hosts)} hosts, but the tasks of {len(counts)}")
    if port_base + max(counts, default=0) - 1 > LARGEST_PORT:
        raise _unreadable(
            f"port {port_base} leaves too few ports for {max(counts)} tasks of a host"
        )
    return [
        f"{host}:{port_base + number}"
        for host, num_tasks in zip(hosts, counts, strict=True)
        for number in range(num_tasks)
    ]


def expand_hosts(text: str) -> list[str]:
    """Return the hosts of a list of Slurm, with ranges in brackets; RUN-081 if it cannot be read.

    >>> expand_hosts("n[08-10,12],m5")
    ['n08', 'n09', 'n10', 'n12', 'm5']
    """
    return [
        "".join(parts)
        for name in _names(text)
        for parts in itertools.product(*(_expanded(part, text) for part in name))
    ]


def expand_tasks(text: str) -> list[int]:
    """Return the number of tasks of every host; RUN-081 if the text cannot be read.

    >>> expand_tasks("3(x2),1")
    [3, 3, 1]
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part)
        if match is None:
            raise _unreadable(f"{text!r} is no list of tasks per host such as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _names(text: str) -> Iterator[list[str]]:
    """Yield the characters and brackets of every name in a list."""
    position, name = 0, list[str]()
    while position < len(text):
        if text[position] == "," and name:
            yield name
            position, name = position + 1, []
            continue
        match = _PART.match(text, position)
        if match is None:
            raise _no_hosts(text)
        name.append(match[0])
        position = match.end()
    if not name:
        raise _no_hosts(text)
    yield name


def _expanded(part: str, text: str) -> list[str]:
    if not part.startswith("["):
        return [part]
    found: list[str] = []
    for piece in part[1:-1].split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise _no_hosts(text)
        first, last = match[1], match[2] or match[1]
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def _text(environ: Mapping[str, str], *names: str) -> str:
    for name in names:
        if environ.get(name):
            return environ[name]
    raise _unreadable(f"{' and '.join(names)} {'are' if names[1:] else 'is'} not set")


def _number(environ: Mapping[str, str], *names: str) -> int:
    text = _text(environ, *names)
    if not (text.isascii() and text.isdecimal()):
        raise _unreadable(f"{text!r} is no number for {' or '.join(names)}")
    return int(text)


def _no_hosts(text: str) -> RunError:
    return _unreadable(f"{text!r} is no list of hosts such as n[01-04],m5")


def _unreadable(why: str) -> RunError:
    return RunError(
        "RUN-081",
        "The workers cannot be derived from the environment of Slurm.",
        why=f"{why}.",
        fix="Start all tasks by `srun evener launch SCRIPT`, or set TF_CONFIG.",
    )
