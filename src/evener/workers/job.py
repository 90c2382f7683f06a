"""A worker's part in a job, read from the environment of its process."""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import json
import os
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evener.errors import RunError, did_you_mean
from evener.profile.cache import cache_folder
from evener.workers.addresses import is_loopback, join_address, split_address
from evener.workers.settings import check_index, json_object, positive_seconds, typed, wrong_value
from evener.workers.tf_config import cluster_of

HEARTBEAT_SECONDS = 10.0
START_SECONDS = 300.0
PATIENCE_SECONDS = 600.0
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A worker's part in a job of several workers."""

    index: int  # From 0.
    count: int  # Number of workers at the start of the job.
    coordinator: str  # ``host:port``.
    secret: bytes = field(repr=False)  # Only processes that know it may join.
    hosts_coordinator: bool  # True if the coordinator runs in this worker's process.
    host: str  # Host under which the other workers reach this worker.
    incarnation: int  # Number of restarts of this worker; a replacement has a higher one.
    heartbeat_seconds: float  # Silence after which a worker counts as lost.
    start_seconds: float  # Time that workers wait for each other at the start.
    patience_seconds: float = PATIENCE_SECONDS  # Time that workers wait for each other later.

    def to_environment(self) -> dict[str, str]:
        """Return the variables from which `job_from_environment` reads this job."""
        values = {name: getattr(self, name) for name in _NAMES}
        return {"EVENER_JOB": json.dumps(values), "EVENER_JOB_SECRET": os.fsdecode(self.secret)}


_NAMES = tuple(each.name for each in dataclasses.fields(Job) if each.name != "secret")


def job_from_environment(environ: Mapping[str, str]) -> Job | None:
    """Return this process's part in a job, or None if it trains alone.

    ``EVENER_JOB`` is read first, which `evener launch` sets; then ``TF_CONFIG``, where worker 0
    hosts the coordinator. ``EVENER_JOB_SECRET``, ``EVENER_COORDINATOR`` (under ``TF_CONFIG``),
    ``EVENER_INCARNATION`` (under ``TF_CONFIG``), ``EVENER_HEARTBEAT_SECONDS``,
    ``EVENER_START_SECONDS`` and ``EVENER_PATIENCE_SECONDS`` complete both.
    """
    if environ.get("EVENER_JOB", "").strip():
        return _launched(environ)
    return _listed(environ)


def _launched(environ: Mapping[str, str]) -> Job:
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
        incarnation=_at_least("EVENER_JOB.incarnation", value("incarnation", "a whole number", 0)),
        heartbeat_seconds=seconds_of(environ, "heartbeat_seconds", HEARTBEAT_SECONDS, values),
        start_seconds=seconds_of(environ, "start_seconds", START_SECONDS, values),
        patience_seconds=seconds_of(environ, "patience_seconds", PATIENCE_SECONDS, values),
    )


def _listed(environ: Mapping[str, str]) -> Job | None:
    cluster = cluster_of(environ)
    if cluster is None:
        return None
    given = environ.get("EVENER_COORDINATOR") or cluster.coordinator
    address = split_address(given, "EVENER_COORDINATOR")
    incarnation = environ.get("EVENER_INCARNATION") or "0"
    if not (incarnation.isascii() and incarnation.isdecimal()):
        raise wrong_value("EVENER_INCARNATION", incarnation, "a whole number from 0")
    everything = [*cluster.addresses, address]
    return Job(
        index=cluster.index,
        count=len(cluster.addresses),
        coordinator=given,
        secret=_secret(
            environ,
            [host for host, _ in everything],
            [join_address(host, port) for host, port in everything],
        ),
        hosts_coordinator=cluster.index == 0,
        host=cluster.addresses[cluster.index][0],
        incarnation=int(incarnation),
        heartbeat_seconds=seconds_of(environ, "heartbeat_seconds", HEARTBEAT_SECONDS),
        start_seconds=seconds_of(environ, "start_seconds", START_SECONDS),
        patience_seconds=seconds_of(environ, "patience_seconds", PATIENCE_SECONDS),
    )


def _at_least(path: str, number: int, least: int = 0) -> int:
    if number < least:
        raise wrong_value(path, number, f"a whole number from {least}")
    return number


def seconds_of(
    environ: Mapping[str, str],
    name: str,
    default: float,
    values: Mapping[str, object] | None = None,
) -> float:
    """Return a duration, such as ``"start_seconds"``, from its variable or ``EVENER_JOB``."""
    variable = f"EVENER_{name.upper()}"
    if environ.get(variable):
        return positive_seconds(variable, environ[variable])
    value = default if values is None else values.get(name, default)
    return positive_seconds(f"EVENER_JOB.{name}", value)


def _secret(environ: Mapping[str, str], hosts: list[str], addresses: list[str]) -> bytes:
    """Return the secret of the job.

    Processes of one user on one machine get by without ``EVENER_JOB_SECRET``: they share a key.
    """
    given = environ.get("EVENER_JOB_SECRET")
    if given:
        return os.fsencode(given)
    reachable = [host for host in hosts if not is_loopback(host)]
    if reachable:
        raise _no_secret(f"other machines reach {reachable[0]}; without a secret, any could join.")
    try:
        key = _key(cache_folder(environ) / "secret")
    except (OSError, RuntimeError) as error:
        # RuntimeError: this user has no home.
        raise _no_secret(
            f"other users of this machine reach the workers, and no key is kept from them: {error}."
        ) from error
    return hmac.digest(key, " ".join(addresses).encode(), "sha256")


def _key(folder: Path) -> bytes:
    """Return the random key of this user, which the first process that needs it makes.

    OSError if it cannot be made or read, or if another user may read or replace it.
    """
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
    return key


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
