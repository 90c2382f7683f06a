"""The coordinator of the workers, in the process of the supervisor."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Protocol

from evener.launch.events import Agreed, Joined, Lost, Membership
from evener.launch.settings import LaunchSettings
from evener.workers.addresses import join_address
from evener.workers.coordinator import Coordinator
from evener.workers.events import Event as CoordinatorEvent
from evener.workers.events import Failed, Formed
from evener.workers.events import Lost as LostMember
from evener.workers.job import PATIENCE_SECONDS, Job, seconds_of

_CLOSING_SECONDS = 5.0
"""Time for a worker to end after its connection: a failing program closes it first."""


class Control(Protocol):
    """Membership of a job, as the supervisor needs it; by itself, one that is kept elsewhere."""

    def start(self, on_change: Callable[[Membership], None]) -> None:
        """Begin to listen; ``on_change`` is told of changes of the membership, in any thread."""

    def environment(self, index: int, incarnation: int, host: str) -> Mapping[str, str]:
        """Return the variables by which a worker finds the coordinator. For any thread.

        ``host`` is the address under which the others reach the worker.
        """
        return {}

    def go_without(self, index: int) -> None:
        """Do not wait for a worker that nobody starts again."""

    def stop(self) -> None:
        """Close all connections, and end all threads."""


class NoControl(Control):
    """Stands for a coordinator that runs elsewhere: the environment names it already."""


class JobControl(Control):
    """Runs the coordinator of a job, with a secret of its own; all workers reach ``host``."""

    def __init__(self, settings: LaunchSettings, host: str) -> None:
        self._settings = settings
        self._host = host
        self._patience = seconds_of(settings.environ, "patience_seconds", PATIENCE_SECONDS)
        self._secret = secrets.token_hex(32).encode()
        self._coordinator: Coordinator | None = None
        self._incarnations: dict[int, int] = {}

    def start(self, on_change: Callable[[Membership], None]) -> None:
        """Begin to listen at a free port."""

        def on_event(event: CoordinatorEvent) -> None:
            if isinstance(event, LostMember):
                on_change(self._lost(event))
            elif isinstance(event, Formed):
                step = max(event.view.done.values(), default=0) + 1
                on_change(Joined(indices=event.view.members, step=step))
            elif isinstance(event, Failed):
                # The others have waited for them in vain.
                why = "it has not joined the others in time"
                for index in sorted(event.missing):
                    number = self._incarnations.get(index, 0)
                    on_change(Lost(index=index, incarnation=number, why=why, wait_seconds=0.0))
            else:
                on_change(Agreed())

        self._coordinator = Coordinator(
            len(self._settings.workers),
            self._secret,
            address=join_address(self._host, 0),
            heartbeat_seconds=self._settings.heartbeat_seconds,
            start_seconds=self._settings.start_seconds,
            patience_seconds=self._patience,
            on_event=on_event,
        )
        self._coordinator.start()

    def environment(self, index: int, incarnation: int, host: str) -> Mapping[str, str]:
        """Return ``EVENER_JOB`` and ``EVENER_JOB_SECRET`` of a worker."""
        assert self._coordinator is not None
        self._incarnations[index] = incarnation
        if incarnation:
            # The others wait for all that are there from the start.
            self._coordinator.expect(index, incarnation)
        job = Job(
            index=index,
            count=len(self._settings.workers),
            coordinator=self._coordinator.address,
            secret=self._secret,
            hosts_coordinator=False,
            host=host,
            incarnation=incarnation,
            heartbeat_seconds=self._settings.heartbeat_seconds,
            start_seconds=self._settings.start_seconds,
        )
        return job.to_environment()

    def go_without(self, index: int) -> None:
        """Do not wait for a worker that nobody starts again."""
        assert self._coordinator is not None
        self._coordinator.go_without(index)

    def stop(self) -> None:
        """Close all connections, and end all threads."""
        if self._coordinator is not None:
            self._coordinator.stop()

    def _lost(self, event: LostMember) -> Lost:
        if not event.is_fault:
            wait = self._settings.grace_seconds
        else:
            wait = 0.0 if "silent" in event.why else _CLOSING_SECONDS
        number, why = event.incarnation, event.why
        return Lost(index=event.index, incarnation=number, why=why, wait_seconds=wait)
