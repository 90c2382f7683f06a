"""The job that this process is a worker of, if its environment says so."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evener.errors import RunError
from evener.workers.addresses import is_loopback, join_address
from evener.workers.connections import Listener
from evener.workers.coordinator import Coordinator
from evener.workers.faults import EXIT_CODE_OF_LOST, is_lost
from evener.workers.group import Group
from evener.workers.job import Job, job_from_environment
from evener.workers.late import Late, ends_with_the_job
from evener.workers.member import Member
from evener.workers.network import Network
from evener.workers.seeds import agree_on_seeds
from evener.workers.view import View

_LOG = logging.getLogger("evener")
_ANYWHERE = "0.0.0.0"
_lock = threading.Lock()
_joined: list[Group | None] = []


def group_of_process(
    script: str | None = None, tell: Callable[[str], object] | None = None
) -> Group | None:
    """Join the job of this process, and wait for the other workers; at the first call.

    Returns None if the environment names no job of several workers. ``script`` is the path of the
    program, if it is not the main module; without ``tell``, what a person should know is printed.
    """
    with _lock:
        if not _joined:
            job = job_from_environment(os.environ)
            _joined.append(None if job is None else _join(job, script))
            if _joined[0] is not None:
                agree_on_seeds(_joined[0], tell or tell_person)
        return _joined[0]


def _join(job: Job, script: str | None) -> Group:
    coordinator = None
    if job.hosts_coordinator:
        coordinator = Coordinator(
            job.count,
            job.secret,
            address=job.coordinator,
            heartbeat_seconds=job.heartbeat_seconds,
            start_seconds=job.start_seconds,
            patience_seconds=job.patience_seconds,
        )
        coordinator.start()
    listener = Listener(job.host if is_loopback(job.host) else _ANYWHERE, job.secret)
    network = Network(job, listener, patience_seconds=job.patience_seconds)
    groups: list[Group] = []

    def end_view() -> None:
        # Also before the group is there to be told: then it does not connect.
        listener.end(member.view.number)
        for group in groups:
            group.end_view()

    member = Member(
        job,
        address=join_address(job.host, listener.port),
        facts={"same": _same_everywhere(script)},
        on_view_over=end_view,
    )
    late, view = _begin(job, member)
    group = Group(job, member, network, view, late=late)
    groups.append(group)
    if late is None:
        group.connect()
    atexit.register(_leave, group, coordinator)
    return group


def _begin(job: Job, member: Member) -> tuple[Late | None, View]:
    """Join the others; a replacement only asks where they are."""
    if not job.incarnation:
        return None, member.join()
    with ends_with_the_job():
        member.appear()
        view, exchanged = member.look()
        if view is None:
            return None, member.join()
    return Late(view, member, exchanged), view


def _leave(group: Group, coordinator: Coordinator | None) -> None:
    """Leave the job of this process.

    Python's own exit code is settled by now, and 0 would say that the job has come to its end.
    """
    code = 0
    try:
        if getattr(sys, "last_value", None) is None:
            group.leave()
    except RunError as error:
        if error.code != "RUN-074":
            print(error, file=sys.stderr)
            code = EXIT_CODE_OF_LOST if is_lost(error) else 1
    # The others lose a worker that has failed.
    group.close()
    if coordinator is not None:
        coordinator.stop()
    if code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def tell_person(text: str) -> None:
    """Print a line for the person who started the job."""
    print(f"evener: {text}", file=sys.stderr)


def _same_everywhere(script: str | None) -> dict[str, Any]:
    """Return the facts that must be equal on all workers."""
    import keras
    import tensorflow as tf

    from evener import __version__

    main = script or getattr(sys.modules.get("__main__"), "__file__", None)
    found: dict[str, Any] = {
        "version of evener": __version__,
        "version of TensorFlow": tf.__version__,
        "version of Keras": keras.__version__,
        "version of Python": ".".join(map(str, sys.version_info[:2])),
    }
    if main is not None and Path(main).is_file():
        found["script"] = (
            f"{Path(main).name} {hashlib.sha256(Path(main).read_bytes()).hexdigest()[:16]}"
        )
    return found
