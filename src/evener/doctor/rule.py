"""A rule of the doctor: one kind of mistake, in one file of ``rules``, with one page."""

from __future__ import annotations

import enum
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Place, Program

if TYPE_CHECKING:
    from evener.doctor.surroundings import Surroundings
    from evener.doctor.watch import Seen


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
    """All that rules may look at.

    Args:
        program: What the text says.
        surroundings: The machine, the environment and the installed packages.
        seen: What a run has shown; None without ``--run``.
    """

    program: Program
    surroundings: Surroundings
    seen: Seen | None = None


Look = Callable[[Case], Iterator[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One kind of mistake.

    Args:
        code: The code of the error that evener raises for the same mistake, if there is one;
            else ``DOC-...``.
        family: What it is about.
        title: A few words for lists.
        severity: Of its findings, where they do not say otherwise.
        look: Finds it.
        also: Codes of further errors that evener raises for the same mistake.
    """

    code: str
    family: Family
    title: str
    severity: Severity
    look: Look
    also: tuple[str, ...] = ()

    def finding(
        self,
        place: Place,
        what: str,
        *,
        why: str,
        fix: str,
        evidence: tuple[str, ...] = (),
        severity: Severity | None = None,
    ) -> Finding:
        """Return a finding of this rule; without evidence, the line itself is it."""
        return Finding(
            code=self.code,
            severity=severity or self.severity,
            file=place.path,
            line=place.line,
            what=what,
            why=why,
            fix=fix,
            evidence=evidence or ((place.text,) if place.text else ()),
        )


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Return the rules of all files of ``rules``, in the order of families and codes."""
    from evener.doctor import rules

    found = [
        importlib.import_module(f"{rules.__name__}.{module.name}").RULE
        for module in pkgutil.iter_modules(rules.__path__)
    ]
    families = list(Family)
    return tuple(sorted(found, key=lambda rule: (families.index(rule.family), rule.code)))
