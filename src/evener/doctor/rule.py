"""A rule: one kind of mistake, the function that finds it, and what that function reports."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from evener.analysis import Location, Program
from evener.doctor.finding import Severity
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
    """

    program: Program
    surroundings: Surroundings
    observation: Observation | None = None


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
    """

    location: Location
    what: str
    why: str = field(kw_only=True)
    fix: str = field(kw_only=True)
    evidence: tuple[str, ...] = field(default=(), kw_only=True)
    severity: Severity | None = field(default=None, kw_only=True)
    cause: str = field(default="", kw_only=True)


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
