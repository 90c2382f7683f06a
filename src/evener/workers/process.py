"""The job that this process is a worker of, if its environment says so; a seed for all workers."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener import __version__
from evener._tf_private.random_numbers import global_seed, seed_new_generators
from evener.checkpoint import random_state
from evener.errors import RunError
from evener.workers.connections import Listener
from evener.workers.coordinator import Coordinator
from evener.workers.faults import EXIT_CODE_OF_LOST, is_lost
from evener.workers.group import Group
from evener.workers.job import Job, is_loopback, job_from_environment, join_address
from evener.workers.late import Late, Network, ends_with_the_job
from evener.workers.member import Member
from evener.workers.messages import View

_ANYWHERE = "0.0.0.0"
_lock = threading.Lock()
_joined: list[Group | None] = []
_SEEDS = 2**31
_SEEDING: dict[str, Callable[[int], None]] = {
    "python": random.seed,
    "numpy": np.random.seed,
    "tensorflow": tf.random.set_seed,
}


def group_of_process(
    script: str | None = None, tell: Callable[[str], object] | None = None
) -> Group | None:
    """Join the job of this process, and wait for the other workers; at the first call."""
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

    main = script or getattr(sys.modules.get("__main__"), "__file__", None)
    facts = {
        "version of evener": __version__,
        "version of TensorFlow": tf.__version__,
        "version of Keras": keras.__version__,
        "version of Python": ".".join(map(str, sys.version_info[:2])),
    }
    if main is not None and Path(main).is_file():
        digest = hashlib.sha256(Path(main).read_bytes()).hexdigest()
        facts["script"] = f"{Path(main).name} {digest[:16]}"
    member = Member(
        job,
        address=join_address(job.host, listener.port),
        facts={"same": facts},
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


def agree_on_seeds(group: Group, tell: Callable[[str], object]) -> None:
    """Seed Python's, NumPy's and TensorFlow's random sources, as far as the program has not.

    Sources without a seed begin differently in each process: sources with equal states on all
    workers have been seeded by the program. Seeds that the program sets later win by
    themselves. Before the first step, the chief reports the seed if it counts.
    """
    seed = group.agree("seed", lambda: random.SystemRandom().randrange(_SEEDS))
    states: dict[str, Any] = random_state.read()
    own = {
        name: hashlib.sha256(json.dumps(states[name]).encode()).hexdigest()
        for name in ("python", "numpy")
    }
    told = group.exchange("states of random sources", {**own, "tensorflow": global_seed()})
    unseeded = [
        source
        for source in _SEEDING
        if told[0][source] is None or any(each[source] != told[0][source] for each in told)
    ]
    if len(unseeded) == len(_SEEDING):
        # So that a program that sets the seed which is told draws the same numbers.
        keras.utils.set_random_seed(seed)
    else:
        for source in unseeded:
            _SEEDING[source](seed)
    sequence = np.random.SeedSequence(seed)
    seed_new_generators(lambda: sequence.spawn(1)[0])

    def tell_of_seed() -> None:
        is_replaced = "tensorflow" in unseeded and global_seed() != seed
        if unseeded and group.is_chief and not is_replaced:
            tell(
                f"the {group.count} workers use seed {seed}; keras.utils.set_random_seed sets "
                "another"
            )

    group.before_steps(tell_of_seed)


def _leave(group: Group, coordinator: Coordinator | None) -> None:
    """Leave the job of this process."""
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
