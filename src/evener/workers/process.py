"""The job that this process is a worker of, if its environment says so; a seed for all workers."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import itertools
import json
import os
import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener import __version__
from evener._tf_private.collective_ops import CollectiveServer, has_started
from evener._tf_private.random_numbers import global_seed, seed_new_generators
from evener.checkpoint import random_state
from evener.devices.names import GPU, kind_of
from evener.devices.spec import spec_from
from evener.errors import RunError, listed
from evener.workers.connections import start_thread
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
_TELL_SECONDS = 10.0
"""Time between two lines that tell for whom a worker waits."""
_SEEDING: dict[str, Callable[[int], None]] = {
    "python": random.seed,
    "numpy": np.random.seed,
    "tensorflow": tf.random.set_seed,
}


def draw_seed() -> int:
    return random.SystemRandom().randrange(_SEEDS)


def group_of_process(
    script: str | None = None,
    tell: Callable[[str], object] | None = None,
    seed: Callable[[], int] = draw_seed,
    devices: str | Sequence[str] | None = None,
) -> Group | None:
    """Join the job of this process, and wait for the other workers; at the first call.

    ``devices`` are those that this process is about to compute on, as `evener.Strategy` takes them.
    """
    with _lock:
        if not _joined:
            job = job_from_environment(os.environ)
            _joined.append(None if job is None else _join(job, script, tell or tell_person))
            if job is not None and _joined[0] is not None:
                agree_on_carrier(_joined[0], job, uses_gpus(devices), tell or tell_person)
                agree_on_seeds(_joined[0], tell or tell_person, seed)
        return _joined[0]


def _join(job: Job, script: str | None, tell: Callable[[str], object]) -> Group:
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
    network = Network(job, job.host if is_loopback(job.host) else _ANYWHERE)
    groups: list[Group] = []

    def end_view() -> None:
        # Also before the group is there to be told: then it does not connect.
        network.end(member.view.number)
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
        address=join_address(job.host, network.port),
        facts={"same": facts},
        on_view_over=end_view,
    )
    with telling_of_wait(job, coordinator, tell):
        late, view = _begin(job, member)
    group = Group(job, member, network, view, late=late)
    groups.append(group)
    if late is None:
        group.connect()
    atexit.register(_leave, group, coordinator)
    return group


@contextlib.contextmanager
def telling_of_wait(
    job: Job,
    coordinator: Coordinator | None,
    tell: Callable[[str], object],
    *,
    every_seconds: float = _TELL_SECONDS,
) -> Iterator[None]:
    is_over = threading.Event()
    addresses = {index: f" at {address}" for index, address in enumerate(job.addresses)}

    def work() -> None:
        for count in itertools.count(1):
            if is_over.wait(every_seconds):
                return
            awaited = f"the other workers, who meet at {job.coordinator}"
            if coordinator is not None:
                absent = [f"worker {k}{addresses.get(k, '')}" for k in coordinator.absent()]
                awaited = listed(absent, 3) or awaited
            tell(f"waiting for {awaited}, {count * every_seconds:g} of {job.start_seconds:g} s")

    thread = start_thread("evener-wait", work)
    try:
        yield
    finally:
        is_over.set()
        thread.join()


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


def uses_gpus(devices: str | Sequence[str] | None) -> bool:
    """Return whether this process computes on GPUs alone; devices as `evener.Strategy` has them."""
    if devices is None or isinstance(devices, str):
        are_gpus = spec_from(devices, os.environ).kind != "cpu"
    else:
        are_gpus = all(kind_of(name) is GPU for name in devices)
    # Asked last: TensorFlow looks for GPUs once.
    return are_gpus and bool(tf.config.list_physical_devices("GPU"))


def agree_on_carrier(group: Group, job: Job, has_gpus: bool, tell: Callable[[str], object]) -> None:
    """Let the mesh or TensorFlow's collectives carry the exchanges of steps, alike on all."""
    own = {"exchange": job.exchange, "gpus": has_gpus, "has_started": has_started()}
    told = group.exchange("carrier", own)
    if len({each["exchange"] for each in told}) > 1:
        raise RunError(
            "RUN-110",
            "The workers exchange in different ways: "
            f"{', '.join(each['exchange'] for each in told)}.",
            why="A step is exchanged by the mesh of evener or by TensorFlow's collectives, on all.",
            fix="Set EVENER_EXCHANGE to the same text on all workers.",
        )
    communication = "nccl" if all(each["gpus"] for each in told) else "ring"
    early = [index for index, each in enumerate(told) if each["has_started"]]
    if early and job.exchange == "tensorflow":
        raise RunError(
            "RUN-111",
            f"TensorFlow has started before the workers met, on {', '.join(map(str, early))}.",
            why="Its collectives need a server that its runtime starts with.",
            fix="Use `evener launch`, or make the strategy before any tensor; or set "
            "EVENER_EXCHANGE=mesh.",
        )
    reasons = {
        "it was chosen": job.exchange == "mesh",
        "not all of them compute on GPUs": job.exchange == "auto" and communication == "ring",
        "TensorFlow had started before they met": bool(early),
    }
    why = next((reason for reason, holds in reasons.items() if holds), None)
    if why is not None:
        group.before_steps.append(lambda: _tell_of_carrier(group, f"evener's mesh: {why}", tell))
        return
    with socket.socket(socket.AF_INET6 if ":" in job.host else socket.AF_INET) as free:
        free.bind(("", 0))
        address = join_address(job.host, free.getsockname()[1])
    group.use_collectives(CollectiveServer(job.index, address, communication))

    def begin() -> None:
        # Whoever is asked for a tensor has to be there.
        tf.config.list_logical_devices()
        group.exchange("collectives are there", None)
        by = "NCCL" if communication == "nccl" else "its ring over gRPC"
        _tell_of_carrier(
            group,
            f"TensorFlow's collectives ({by}); their port, here {address}, is open to all "
            "who reach it",
            tell,
        )

    group.before_steps.append(begin)


def _tell_of_carrier(group: Group, carrier: str, tell: Callable[[str], object]) -> None:
    if group.is_chief:
        tell(f"the workers exchange by {carrier}")


def agree_on_seeds(
    group: Group, tell: Callable[[str], object], draw: Callable[[], int] = draw_seed
) -> None:
    """Seed Python's, NumPy's and TensorFlow's random sources, as far as the program has not.

    Sources without a seed begin differently in each process: sources with equal states on all
    workers have been seeded by the program. Seeds that the program sets later win by
    themselves. Before the first step, the chief reports the seed if it counts.
    """
    seed = group.agree("seed", draw)
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
        seed_all(seed)
    else:
        for source in unseeded:
            _SEEDING[source](seed)
        _seed_generators(seed)

    def tell_of_seed() -> None:
        is_replaced = "tensorflow" in unseeded and global_seed() != seed
        if unseeded and group.is_chief and not is_replaced:
            tell(
                f"the {group.count} workers use seed {seed}; keras.utils.set_random_seed sets "
                "another"
            )

    group.before_steps.append(tell_of_seed)


def seed_all(seed: int) -> None:
    keras.utils.set_random_seed(seed)
    _seed_generators(seed)


def _seed_generators(seed: int) -> None:
    sequence = np.random.SeedSequence(seed)
    seed_new_generators(lambda: sequence.spawn(1)[0])


def _leave(group: Group, coordinator: Coordinator | None) -> None:
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
        if not code:
            coordinator.wait_for_newcomers()
        coordinator.stop()
    if code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def tell_person(text: str) -> None:
    print(f"evener: {text}", file=sys.stderr)
