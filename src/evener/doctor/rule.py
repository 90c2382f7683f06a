"""A rule: one kind of mistake, the function that finds it, and what that function reports."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from evener.analysis import Place, Program
from evener.doctor.finding import Severity
from evener.doctor.surroundings import Surroundings
from evener.doctor.watch import Observation


class Family(enum.Enum):
    """What a rule is about."""

    PROGRAM = "the program itself"
    DEVICES = "devices"
    DISTRIBUTION = "distribution"
    NUMBERS = "gradients and numbers"
    SPEED = "speed"
    CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a rule examines.

    Args:
        program: The source code of the program.
        surroundings: The machine, the environment and the installed packages.
        observation: What a run has shown; None without ``--run``.
    """

    program: Program
    surroundings: Surroundings
    observation: Observation | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """One place that violates a rule.

    Args:
        place: The line.
        what: One sentence: what is wrong.
        why: What it does to the training.
        fix: What to write instead.
        evidence: What it was found by; the line itself if nothing is given.
        severity: How much it matters, where it is not the rule's own severity.
        cause: Violations of one cause are one finding; of those without, why and fix are it.
    """

    place: Place
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
        family: What it is about.
        severity: Of its findings, unless a violation has its own.
        title: A few words for lists.
        check: Yields the violations.
        also: Codes of further errors that evener raises for the same mistake.
    """

    code: str
    family: Family
    severity: Severity
    title: str
    check: Callable[[Case], Iterator[Violation]]
    also: tuple[str, ...] = field(default=(), kw_only=True)
