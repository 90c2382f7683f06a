"""A finding, the rule that finds it, and what a rule looks at."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evener.doctor.facts import CodeLine, Ending, Facts, Outcome, Pipeline, Steps
from evener.doctor.sources import Location, Source, Unread
from evener.doctor.surroundings import Surroundings
from evener.doctor.values import Call
from evener.errors import house_form
from evener.run.regions import EagerStep, eager_step_of

PAGES = Path(__file__).parent / "pages"
"""The folder with a help page for each rule, which has the name of its code."""
NO_RUN = Facts(ending=Ending(outcome=Outcome.ENOUGH, seconds=0.0))
"""Facts of a program that is only read."""
# Steps of an epoch where the number is not known.
USUAL_EPOCH = 1000


class Severity(enum.Enum):
    """Severity of a finding, the worst first."""

    ERROR = "error"  # fails, or trains something other than intended
    WARNING = "warning"  # wastes devices, time or memory, or will fail elsewhere
    HINT = "hint"  # could be better

    @property
    def rank(self) -> int:
        """Position in the order of severities: 0 for the worst."""
        return list(Severity).index(self)


class Family(enum.Enum):
    """Subject of a rule, in the order in which a person should look at findings."""

    PROGRAM = "the program itself"
    NUMBERS = "gradients and numbers"
    DEVICES = "devices"
    DISTRIBUTION = "distribution"
    MEMORY = "memory"
    SPEED = "speed"

    @property
    def rank(self) -> int:
        """Position: what ends or falsifies training, idle devices, memory, time."""
        return {"PROGRAM": 0, "NUMBERS": 0, "MEMORY": 2, "SPEED": 3}.get(self.name, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Mistake that the doctor has found in a program.

    Args:
        code: Code of the rule; ``evener doctor --explain CODE`` prints its page.
        severity: Severity of the mistake.
        file: Absolute path of the file, or another name, such as that of an environment variable.
        line: Line number, from 1; 0 if it concerns no line.
        what: Sentence that says what is wrong.
        why: Effect on the training.
        fix: Code to write instead.
        evidence: Facts that show it: lines of the program, settings, measured numbers.
        seconds_per_epoch: Time that it costs; None if it is not known, or costs none.
    """

    code: str
    severity: Severity
    file: str
    line: int
    what: str
    why: str
    fix: str
    evidence: tuple[str, ...] = ()
    seconds_per_epoch: float | None = None

    @property
    def location(self) -> str:
        """``file:line``, the file relative to the current folder; the file alone for line 0."""
        below, here = Path(self.file), Path.cwd()
        short = str(below.relative_to(here)) if below.is_relative_to(here) else self.file
        return f"{short}:{self.line}" if self.line else short

    def __str__(self) -> str:
        return house_form(self.code, f"{self.location}: {self.what}", self.why, self.fix)

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as ``--json`` prints it: text, numbers and lists by field name."""
        return {**dataclasses.asdict(self), "severity": self.severity.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The text of a program."""

    script: str  # Absolute path of the script
    sources: tuple[Source, ...] = ()  # Its files, the script first
    unread: tuple[Unread, ...] = ()  # Files that could not be read
    calls: tuple[Call, ...] = ()  # Calls in the order in which they run

    def named(self, *names: str) -> Iterator[Call]:
        """Yield the calls of some names; a name that ends in ``*`` stands for all that begin so."""
        exact = {name for name in names if not name.endswith("*")}
        starts = tuple(name[:-1] for name in names if name.endswith("*"))
        for call in self.calls:
            if call.name in exact or (starts and call.name.startswith(starts)):
                yield call

    def eager_step(self) -> EagerStep | None:
        """Return the training step that no `tf.function` traces, if there is one."""
        for call in self.named("optimizer.apply_gradients", "optimizer.apply", "?.apply_gradients"):
            if not call.context.roles & {"traced", "keras", "replica"}:
                return eager_step_of(call.source.text, call.location.line)
        return None

    def num_trainings(self) -> int:
        """Return the number of trainings: calls of fit, and loops that update weights."""
        found = set[object]()
        for call in self.named("model.fit", "optimizer.apply_gradients"):
            if not call.context.roles & {"unreached", "keras"}:
                loops = call.context.loops
                is_loop = call.name != "model.fit" and loops
                found.add(loops[-1].node if is_loop else call.node)
        return len(found)

    @property
    def text(self) -> str:
        """Text of all files."""
        return "\n".join(source.text for source in self.sources)

    def imports(self, *roots: str) -> bool:
        return any(
            str(call.constant(0, "")).partition(".")[0] in roots for call in self.named("import")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Input of a rule."""

    reading: Reading  # The text of the program
    surroundings: Surroundings  # The machine and the environment
    facts: Facts = NO_RUN  # Facts of a run; those of no run if the program was only read

    @property
    def has_trained(self) -> bool:
        """Whether the facts show training steps, so that they decide, and not the text."""
        return bool(self.facts.steps)

    @property
    def has_keras_2(self) -> bool:
        text = self.reading.text
        is_in_text = "tf_keras" in text or "TF_USE_LEGACY_KERAS" in text
        return "TF_USE_LEGACY_KERAS" in self.surroundings.environment or is_in_text

    @property
    def are_unequal(self) -> bool:
        """Whether the GPUs differ in memory by more than a tenth."""
        sizes = [gpu.memory_total_bytes for gpu in self.surroundings.gpus]
        known = [size for size in sizes if size]
        return len(known) > 1 and max(known) > 1.1 * min(known)

    @property
    def steps(self) -> Steps | None:
        return self.facts.main_steps

    def pipeline(self, role: str) -> Pipeline | None:
        """Return the first data of a role, if any was seen."""
        return next((each for each in self.facts.pipelines if each.role == role), None)

    def at(self, line: CodeLine | None) -> Location:
        """Return the line of a fact with its text; the script itself for None."""
        if line is None:
            return Location(path=self.reading.script, line=0)
        for source in self.reading.sources:
            if source.path == line.file:
                return source.line(line.line)
        # It is of no file of the project.
        try:
            lines = Path(line.file).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        text = lines[line.line - 1].strip() if 0 < line.line <= len(lines) else ""
        return Location(path=line.file, line=line.line, text=text)

    def violation(
        self, where: CodeLine | Location | None, what: str, *evidence: str, **more: Any
    ) -> Violation:
        """Return that a line violates a rule; ``more`` has further fields of `Violation`."""
        location = where if isinstance(where, Location) else self.at(where)
        return Violation(location, what, evidence=evidence, **more)

    def per_epoch(self, seconds_per_step: float) -> float:
        steps = self.steps
        count = USUAL_EPOCH if steps is None else steps.steps_per_epoch or USUAL_EPOCH
        return seconds_per_step * count


def shown_seconds(seconds: float) -> str:
    """Return seconds with a fitting unit.

    >>> shown_seconds(0.0123), shown_seconds(3.2), shown_seconds(600)
    ('12.3 ms', '3.2 s', '10.0 min')
    """
    if seconds < 1:
        return f"{1000 * seconds:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


@dataclass(frozen=True, slots=True)
class Violation:
    """A source line that violates a rule."""

    location: Location  # Source line
    what: str  # Sentence that says what is wrong
    fix: str = field(kw_only=True)  # Code to write instead
    why: str = field(default="", kw_only=True)  # Effect; empty for what the page of the rule says
    evidence: tuple[str, ...] = field(default=(), kw_only=True)
    severity: Severity | None = field(default=None, kw_only=True)
    seconds: float | None = field(default=None, kw_only=True)  # Time per epoch that it costs


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of mistake."""

    code: str  # The code of the error that evener raises for the same mistake, if there is one
    family: Family  # Subject of the rule
    severity: Severity  # Severity of its findings, unless a violation has its own
    checks: tuple[Callable[[Case], Iterator[Violation]], ...]
    # Pattern of errors that the mistake ends in: such a crash becomes evidence of the finding
    explains: str = field(default="", kw_only=True)
    is_cause: bool = field(default=False, kw_only=True)  # Whether it is the cause of such a crash
    # Codes of further errors that evener raises for the same mistake
    also: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def title(self) -> str:
        """Short description for lists: the first line of its page."""
        return self._page().partition(": ")[2].partition("\n")[0]

    @property
    def reason(self) -> str:
        """Effect on the training: the first paragraph of its page."""
        text = self._page().partition("## What happens, and why\n\n")[2]
        return " ".join(text.partition("\n\n")[0].split())

    def _page(self) -> str:
        return (PAGES / f"{self.code}.md").read_text(encoding="utf-8")
