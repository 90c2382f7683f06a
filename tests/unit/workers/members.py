"""Workers of a job as plain values, whose chief the tests change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from evener.workers.files import Claim


@dataclass(slots=True)
class Job:
    """Workers that are there, and their chief."""

    members: list[int] = field(default_factory=lambda: [0, 1])

    def lose(self, index: int) -> None:
        """Lose a worker."""
        self.members.remove(index)

    def worker(self, index: int) -> Any:
        """Return the job as a worker sees it."""
        return Member(self, index)


@dataclass(slots=True)
class Member:
    """A worker."""

    job: Job
    index: int
    is_late: bool = False

    @property
    def chief(self) -> int:
        """Number of the chief."""
        return min(self.job.members)

    @property
    def view(self) -> Any:
        """The workers that are there."""
        return SimpleNamespace(members=tuple(self.job.members))


@dataclass(slots=True)
class Alone:
    """Writes of a worker, which does not wait for the others."""

    member: Any
    waits: bool = False

    @property
    def is_chief(self) -> bool:
        return self.member.index == self.member.chief and not self.member.is_late

    def finish(self, name: str, claim: Claim, action: Callable[[], Any]) -> Any:
        """Act if the worker has the claim."""
        del name
        return action() if claim.is_mine else None
