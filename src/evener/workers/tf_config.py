"""Workers that are listed in ``TF_CONFIG``, as TensorFlow's cluster resolvers read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evener.errors import RunError
from evener.workers.addresses import LARGEST_PORT, join_address, split_address
from evener.workers.settings import check_index, json_object, typed, wrong_value

_REFUSED = ("ps", "evaluator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Workers of a cluster, and the number of this worker."""

    index: int  # Number of this worker; the chief is worker 0.
    addresses: tuple[tuple[str, int], ...]  # Host and port of every worker, in their order.

    @property
    def coordinator(self) -> str:
        """Address of the coordinator: the first free port after that of worker 0.

        Workers on the same host often have ports in a row, so ports of theirs are left out. All
        workers choose alike, as all read the same list.
        """
        host, first = self.addresses[0]
        used = {port for name, port in self.addresses if name == host}
        port = next(port for port in range(first + 1, LARGEST_PORT + 2) if port not in used)
        return join_address(host, port)


def cluster_of(environ: Mapping[str, str]) -> Cluster | None:
    """Return the workers of ``TF_CONFIG``, or None if they are fewer than two."""
    if not environ.get("TF_CONFIG", "").strip():
        return None
    config = json_object(environ, "TF_CONFIG")
    cluster = typed("TF_CONFIG.cluster", config.get("cluster", {}), "an object")
    if not cluster:
        return None
    task = typed("TF_CONFIG.task", config.get("task"), "an object")
    kind = typed("TF_CONFIG.task.type", task.get("type"), "a text")
    _refuse([kind], "this process is")
    chief, workers = _tasks(cluster, "chief"), _tasks(cluster, "worker")
    if len(chief) + len(workers) < 2:
        return None
    _refuse([name for name in cluster if cluster[name]], "the cluster has")
    addresses = tuple(split_address(text, "TF_CONFIG") for text in (*chief, *workers))
    _check_distinct(addresses)
    index = _index(task, len(workers if kind == "worker" else chief))
    return Cluster(index=index + (len(chief) if kind == "worker" else 0), addresses=addresses)


def _tasks(cluster: Mapping[str, Any], kind: str) -> list[Any]:
    return typed(f"TF_CONFIG.cluster.{kind}", cluster.get(kind, []), "a list")


def _index(task: Mapping[str, Any], count: int) -> int:
    index = task.get("index")
    # TensorFlow's resolver converts texts, and some launchers write them.
    if isinstance(index, str) and index.isascii() and index.isdecimal():
        index = int(index)
    index = typed("TF_CONFIG.task.index", index, "a whole number")
    if count == 0:
        raise wrong_value(
            "TF_CONFIG.task.type", task["type"], "a kind of task that TF_CONFIG.cluster lists"
        )
    return check_index("TF_CONFIG.task.index", index, count)


def _refuse(kinds: list[str], subject: str) -> None:
    for kind in kinds:
        if kind in _REFUSED:
            raise RunError(
                "RUN-052",
                f"TF_CONFIG has a task that evener does not run: {subject} {kind!r}.",
                why="all workers compute the step together; there are no parameter servers, and "
                "the workers evaluate too.",
                fix="list only `worker` tasks, and a `chief` if you like.",
            )
        if kind not in ("chief", "worker"):
            raise wrong_value("The kind of a task in TF_CONFIG", kind, "'worker' or 'chief'")


def _check_distinct(addresses: tuple[tuple[str, int], ...]) -> None:
    seen: dict[tuple[str, int], int] = {}
    for index, address in enumerate(addresses):
        if address in seen:
            raise RunError(
                "RUN-055",
                f"TF_CONFIG has the address {join_address(*address)} twice.",
                why=f"the workers {seen[address]} and {index} cannot share a host and a port.",
                fix="give each worker its own address.",
            )
        seen[address] = index
