"""A worker's part in a job, read from the environment of its process.

Addresses and values of settings are checked one by one; ``EVENER_JOB`` and ``TF_CONFIG`` become a
`Job`, with the secret that only processes of the job know.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import ipaddress
import json
import math
import os
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from evener.errors import RunError, did_you_mean
from evener.plan.profile_files import cache_folder

LARGEST_PORT = 65535
DURATIONS = {"heartbeat_seconds": 10.0, "start_seconds": 300.0, "patience_seconds": 600.0}
"""Durations of a job, and their defaults: see the fields of `Job`."""
EXCHANGES = ("auto", "mesh", "tensorflow")
"""Carriers of the exchanges of steps: see `docs/many_machines.md`."""
_KEY_BYTES = 32


def split_address(text: object, source: str) -> tuple[str, int]:
    """Return the host and the port of ``host:port``; the error RUN-054 names the source, a setting.

    >>> split_address("[::1]:4000", "EVENER_COORDINATOR")
    ('::1', 4000)
    """
    host, colon, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    number = int(port) if port.isascii() and port.isdecimal() else -1
    is_host = bool(host) and host == host.strip() and "/" not in host
    if not colon or not is_host or (":" in host) != bracketed or not 0 <= number <= LARGEST_PORT:
        raise RunError(
            "RUN-054",
            f"{source} holds an address that is not host:port: {text!r}.",
            why=f"a worker is reached under a host and a port from 0 to {LARGEST_PORT}.",
            fix="write for example 10.0.0.1:4000, worker-0.example:4000 or [::1]:4000.",
        )
    return host, number


def join_address(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around a host of IPv6.

    >>> join_address("::1", 4000), join_address("10.0.0.1", 4000)
    ('[::1]:4000', '10.0.0.1:4000')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_KINDS: dict[str, tuple[type, ...]] = {
    "a whole number": (int,),
    "a number": (int, float),
    "a text": (str,),
    "true or false": (bool,),
    "a list": (list,),
    "an object": (dict,),
}


def json_object(environ: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return a variable of the environment that is set; RUN-050 if it holds no JSON object."""
    text = environ[name]
    try:
        value = json.loads(text)
        reason = "" if isinstance(value, dict) else f"it holds {_shown(value)}, not an object."
    except (ValueError, RecursionError) as error:
        value, reason = None, f"JSON cannot be read: {error}."
    if reason:
        raise RunError(
            "RUN-050",
            f"{name} cannot be read: {_shown(text)}.",
            why=reason,
            fix=f'set {name} to a JSON object {{"...": ...}}, or unset it to train on one machine.',
        )
    return cast("dict[str, Any]", value)


def typed(path: str, value: object, expected: str) -> Any:
    kinds = _KINDS[expected]
    if isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool)):
        return value
    raise wrong_value(path, value, expected)


def wrong_value(path: str, value: object, expected: str, hint: str = "") -> RunError:
    """Return the error for a value that is wrong, or None because it is missing."""
    found = "it is missing." if value is None else f"it is {_shown(value)}."
    return RunError(
        "RUN-051",
        f"{path} must be {expected}.",
        why=found,
        fix=f"correct {path}; `evener launch` sets the variables of its workers itself.{hint}",
    )


def check_index(path: str, index: int, count: int) -> int:
    """Return the number of a worker; RUN-053 if the job has no such worker."""
    if not 0 <= index < count:
        raise RunError(
            "RUN-053",
            f"{path} is {index}, which is no worker of the job.",
            why=f"the job has {count} workers, with the numbers 0 to {count - 1}.",
            fix="give each worker its own number, or list all workers.",
        )
    return index


def positive_seconds(path: str, value: object) -> float:
    """Return a number or text as a duration; RUN-056 if it is no finite number above 0."""
    try:
        seconds = math.nan if isinstance(value, bool) else float(cast(Any, value))
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise RunError(
            "RUN-056",
            f"{path} is not a number of seconds: {_shown(value)}.",
            why="a duration is a finite number above 0.",
            fix=f"set {path}, for example, to 10.",
        )
    return seconds


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    index: int  # From 0.
    count: int  # Number of workers at the start of the job.
    coordinator: str  # ``host:port``.
    secret: bytes = field(repr=False)  # Only processes that know it may join.
    hosts_coordinator: bool  # True if the coordinator runs in this worker's process.
    host: str  # Host under which the other workers reach this worker.
    incarnation: int  # Number of restarts of this worker; a replacement has a higher one.
    heartbeat_seconds: float  # Silence after which a worker counts as lost.
    start_seconds: float  # Time that workers wait for each other at the start.
    patience_seconds: float = DURATIONS[
        "patience_seconds"
    ]  # Time that workers wait for each other later.
    exchange: str = "auto"  # One of `EXCHANGES`.
    addresses: tuple[str, ...] = ()  # Those of all workers, where ``TF_CONFIG`` lists them.

    def to_environment(self) -> dict[str, str]:
        values = {name: getattr(self, name) for name in _NAMES}
        return {"EVENER_JOB": json.dumps(values), "EVENER_JOB_SECRET": os.fsdecode(self.secret)}


_NAMES = tuple(
    each.name for each in dataclasses.fields(Job) if each.name not in ("secret", "addresses")
)


def job_from_environment(environ: Mapping[str, str]) -> Job | None:
    """Return this process's part in a job, or None if it trains alone.

    ``EVENER_JOB`` is read first, which `evener launch` sets; then ``TF_CONFIG``, where worker 0
    hosts the coordinator. ``EVENER_JOB_SECRET``, ``EVENER_COORDINATOR`` (under ``TF_CONFIG``),
    ``EVENER_INCARNATION`` (under ``TF_CONFIG``), ``EVENER_HEARTBEAT_SECONDS``,
    ``EVENER_START_SECONDS``, ``EVENER_PATIENCE_SECONDS`` and ``EVENER_EXCHANGE`` complete both.
    """
    if environ.get("EVENER_JOB", "").strip():
        values = json_object(environ, "EVENER_JOB")
        for name in values:
            if name not in _NAMES:
                hint = did_you_mean(name, _NAMES)
                raise wrong_value(f"EVENER_JOB.{name}", values[name], "a known entry", hint)

        def value(name: str, expected: str, default: object = None) -> Any:
            return typed(f"EVENER_JOB.{name}", values.get(name, default), expected)

        count = _at_least("EVENER_JOB.count", value("count", "a whole number"), 1)
        host = value("host", "a text")
        if not host:
            raise wrong_value("EVENER_JOB.host", host, "a host")
        coordinator = value("coordinator", "a text")
        address = split_address(coordinator, "EVENER_JOB.coordinator")
        return Job(
            index=check_index("EVENER_JOB.index", value("index", "a whole number"), count),
            count=count,
            coordinator=coordinator,
            secret=_secret(environ, [address[0], host], [coordinator]),
            hosts_coordinator=value("hosts_coordinator", "true or false", default=False),
            host=host,
            incarnation=_at_least(
                "EVENER_JOB.incarnation", value("incarnation", "a whole number", 0)
            ),
            **{name: duration(environ, name, values) for name in DURATIONS},
            exchange=_exchange(environ, value("exchange", "a text", "auto")),
            addresses=(),
        )
    return _listed(environ)


def _listed(environ: Mapping[str, str]) -> Job | None:
    """Return the part that ``TF_CONFIG`` describes, or None if it lists fewer than two workers."""
    if not environ.get("TF_CONFIG", "").strip():
        return None
    config = json_object(environ, "TF_CONFIG")
    cluster = typed("TF_CONFIG.cluster", config.get("cluster", {}), "an object")
    if not cluster:
        return None
    task = typed("TF_CONFIG.task", config.get("task"), "an object")
    kind = typed("TF_CONFIG.task.type", task.get("type"), "a text")
    _refuse_kind(kind, "this process is")
    chief, workers = (
        typed(f"TF_CONFIG.cluster.{name}", cluster.get(name, []), "a list")
        for name in ("chief", "worker")
    )
    if len(chief) + len(workers) < 2:
        return None
    for name in cluster:
        if cluster[name]:
            _refuse_kind(name, "the cluster has")
    addresses = [split_address(text, "TF_CONFIG") for text in (*chief, *workers)]
    first_with: dict[tuple[str, int], int] = {}
    for number, address in enumerate(addresses):
        if first_with.setdefault(address, number) != number:
            raise RunError(
                "RUN-055",
                f"TF_CONFIG has the address {join_address(*address)} twice.",
                why=f"the workers {first_with[address]} and {number} cannot share a host and a "
                "port.",
                fix="give each worker its own address.",
            )

    index = task.get("index")
    # TensorFlow's resolver converts texts, and some launchers write them.
    if isinstance(index, str) and index.isascii() and index.isdecimal():
        index = int(index)
    index = typed("TF_CONFIG.task.index", index, "a whole number")
    same_kind = workers if kind == "worker" else chief
    if not same_kind:
        raise wrong_value(
            "TF_CONFIG.task.type", kind, "a kind of task that TF_CONFIG.cluster lists"
        )
    index = check_index("TF_CONFIG.task.index", index, len(same_kind))
    index += len(chief) if kind == "worker" else 0

    # By default the first free port after that of worker 0. Workers on the same host often have
    # ports in a row, so ports of theirs are left out. All workers choose alike, as all read the
    # same list.
    host, first = addresses[0]
    used = {port for name, port in addresses if name == host}
    port = next(port for port in range(first + 1, LARGEST_PORT + 2) if port not in used)
    coordinator = environ.get("EVENER_COORDINATOR") or join_address(host, port)
    everything = [*addresses, split_address(coordinator, "EVENER_COORDINATOR")]
    incarnation = environ.get("EVENER_INCARNATION") or "0"
    if not (incarnation.isascii() and incarnation.isdecimal()):
        raise wrong_value("EVENER_INCARNATION", incarnation, "a whole number from 0")
    hosts = [host for host, _ in everything]
    return Job(
        index=index,
        count=len(addresses),
        coordinator=coordinator,
        secret=_secret(environ, hosts, [join_address(*address) for address in everything]),
        hosts_coordinator=index == 0,
        host=hosts[index],
        incarnation=int(incarnation),
        **{name: duration(environ, name) for name in DURATIONS},
        exchange=_exchange(environ, "auto"),
        addresses=tuple(join_address(*address) for address in addresses),
    )


def _refuse_kind(kind: str, subject: str) -> None:
    if kind in ("ps", "evaluator"):
        raise RunError(
            "RUN-052",
            f"TF_CONFIG has a task that evener does not run: {subject} {kind!r}.",
            why="all workers compute the step together; there are no parameter servers, and "
            "the workers evaluate too.",
            fix="list only `worker` tasks, and a `chief` if you like.",
        )
    if kind not in ("chief", "worker"):
        raise wrong_value("The kind of a task in TF_CONFIG", kind, "'worker' or 'chief'")


def _at_least(path: str, number: int, least: int = 0) -> int:
    if number < least:
        raise wrong_value(path, number, f"a whole number from {least}")
    return number


def duration(
    environ: Mapping[str, str], name: str, values: Mapping[str, object] = MappingProxyType({})
) -> float:
    """Return one of `DURATIONS` from its variable, ``EVENER_JOB`` or by default."""
    variable = f"EVENER_{name.upper()}"
    if environ.get(variable):
        return positive_seconds(variable, environ[variable])
    return positive_seconds(f"EVENER_JOB.{name}", values.get(name, DURATIONS[name]))


def _exchange(environ: Mapping[str, str], otherwise: str) -> str:
    return check_exchange("EVENER_EXCHANGE", environ.get("EVENER_EXCHANGE") or otherwise)


def check_exchange(source: str, exchange: str) -> str:
    """Return a carrier of the exchanges; RUN-051, with its source, if there is no such one."""
    if exchange not in EXCHANGES:
        hint = did_you_mean(exchange, EXCHANGES)
        raise wrong_value(source, exchange, f"one of {', '.join(EXCHANGES)}", hint)
    return exchange


def _secret(environ: Mapping[str, str], hosts: list[str], addresses: list[str]) -> bytes:
    given = environ.get("EVENER_JOB_SECRET")
    if given:
        return os.fsencode(given)
    reachable = [host for host in hosts if not is_loopback(host)]
    if reachable:
        raise _no_secret(f"other machines reach {reachable[0]}; without a secret, any could join.")
    try:
        folder = cache_folder(environ) / "secret"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(folder, folder.lstat())
        path = folder / "key"
        if not path.exists():
            # Complete, and readable by this user alone, before another worker may find it.
            descriptor, part = tempfile.mkstemp(dir=folder)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(part)
            Path(part).unlink()
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            _check_private(path, os.fstat(file.fileno()))
            key = file.read()
        if len(key) != _KEY_BYTES:
            raise OSError(f"{path} is damaged")
    except (OSError, RuntimeError) as error:
        # RuntimeError: this user has no home.
        raise _no_secret(
            f"other users of this machine reach the workers, and no key is kept from them: {error}."
        ) from error
    return hmac.digest(key, " ".join(addresses).encode(), "sha256")


def _check_private(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} belongs to another user, or others have access to it")


def _no_secret(why: str) -> RunError:
    return RunError(
        "RUN-057",
        "EVENER_JOB_SECRET is not set.",
        why=why,
        fix="set EVENER_JOB_SECRET to the same random text on all workers, for example from "
        "`openssl rand -hex 32`.",
    )
