"""A rule: one kind of mistake, the function that finds it, and what that function reports."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from evener.analysis import Location, Program
from evener.doctor.edit import Edit
from evener.doctor.finding import Severity
from evener.doctor.step_memory import StepMemory
from evener.doctor.surroundings import Surroundings
from evener.doctor.watch import Observation


class Family(enum.Enum):
    """Subject of a rule."""

    PROGRAM = "the program itself"
    DEVICES = "devices"
    DISTRIBUTION = "distribution"
    MEMORY = "memory"
    NUMBERS = "gradients and numbers"
    SPEED = "speed"
    CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Input of a rule.

    Args:
        program: The source code of the program.
        surroundings: The machine, the environment and the installed packages.
        observation: Observation of a run; None without ``--run``.
        memory: Bytes of a training step; None without ``--run``, or if they are not known.
    """

    program: Program
    surroundings: Surroundings
    observation: Observation | None = None
    memory: StepMemory | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """A source line that violates a rule.

    Args:
        location: Source line.
        what: Sentence that says what is wrong.
        why: Effect on the training.
        fix: Code to write instead.
        evidence: Facts that show it; the line itself if none are given. Empty and equal texts are
            left out of the finding.
        severity: Severity, if it differs from that of the rule.
        cause: Key: violations with the same cause are one finding. Empty: the same why and fix.
        edits: Edits that certainly remove it and change nothing else; empty if none are certain.
    """

    location: Location
    what: str
    why: str = field(kw_only=True)
    fix: str = field(kw_only=True)
    evidence: tuple[str, ...] = field(default=(), kw_only=True)
    severity: Severity | None = field(default=None, kw_only=True)
    cause: str = field(default="", kw_only=True)
    edits: tuple[Edit, ...] = field(default=(), kw_only=True)


# Nothing else is certain about a program that was not read, or did not get as far as training.
_NOT_READ = ("DOC-001", "DOC-002", "DOC-003", "DOC-010", "DOC-011", "DOC-012")
# Why memory runs out, or devices are idle, in one sentence.
_WITHOUT_STRATEGY = "DOC-201"
_IDLE = ("DOC-605", "DOC-101", "DOC-102", "DOC-103", _WITHOUT_STRATEGY, "DOC-202", "RUN-006")
# Answers to "why does memory grow" that belong to other families.
_MEMORY_TOO = ("DOC-408",)
_QUESTIONS = {
    Family.DISTRIBUTION: 3,
    Family.MEMORY: 3,
    Family.DEVICES: 3,
    Family.NUMBERS: 4,
    Family.PROGRAM: 5,
    Family.SPEED: 6,
    Family.CHECKPOINTS: 7,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Signs of the questions of a program's author.

    Args:
        watches_memory: Whether the program measures its memory, or tries to give it back: then
            the first question is why memory runs out.
        names_devices: Whether it says anything about devices. Without, the question why the program
            fails comes before that of a second device.
    """

    watches_memory: bool
    names_devices: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of mistake.

    Args:
        code: The code of the error that evener raises for the same mistake, if there is one;
            else ``DOC-...``.
        family: Subject of the rule.
        severity: Severity of its findings, unless a violation has its own.
        title: Short description for lists.
        check: Function that yields the violations.
        also: Codes of further errors that evener raises for the same mistake.
    """

    code: str
    family: Family
    severity: Severity
    title: str
    check: Callable[[Case], Iterator[Violation]]
    also: tuple[str, ...] = field(default=(), kw_only=True)

    def question(self, author: Author) -> int:
        """Return the position of the question that it answers among those of the author."""
        if self.code in _NOT_READ:
            return 0
        if author.watches_memory and (self.family is Family.MEMORY or self.code in _MEMORY_TOO):
            return 1
        if self.code == _WITHOUT_STRATEGY and not author.names_devices:
            return _QUESTIONS[Family.PROGRAM]
        if self.code in _IDLE:
            return 2
        return _QUESTIONS[self.family]
