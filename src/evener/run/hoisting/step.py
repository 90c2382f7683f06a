"""The state of a region while the program runs: observed, traced, or refused."""

from __future__ import annotations

from dataclasses import dataclass, field

from evener.analysis.hoisting import Region
from evener.run.hoisting.reads import Call
from evener.run.hoisting.symbolic import UsedByPython
from evener.run.hoisting.variant import Variant
from evener.run.user_line import UserLine


@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """A region of the script: what was observed and traced of it, or why it is refused.

    Args:
        region: Lines of the step.
        path: File of the region.
        variants: Traced variants, the latest first.
        pending: Variant that was observed and is not traced yet.
        to_observe: Call to observe, and its variant if there is one already.
        num_observed: Number of sets of values that were observed.
        num_calls: Number of runs on all devices alone.
        num_attempts: Number of traces in which variables were made.
        for_python: Indices of arguments that are numbers which Python itself uses; they are no
            arguments of a graph.
        obstacle: Reason why the step does not run on all devices.
        is_noted: Whether a note says that it runs on all devices.
    """

    region: Region
    path: str
    variants: list[Variant] = field(default_factory=list)
    pending: Variant | None = None
    to_observe: tuple[Call, Variant | None] | None = None
    num_observed: int = 0
    num_calls: int = 0
    num_attempts: int = 0
    for_python: frozenset[int] = frozenset()
    obstacle: str | None = None
    is_noted: bool = False

    def places_of(self, call: Call) -> frozenset[int]:
        """Return which arguments are numbers that change: they become arguments of the graph."""
        if self.latest is None:
            return frozenset()
        changing = call.numbers_unlike(self.latest.reads.structures)
        return (self.latest.places | changing) - self.for_python

    @property
    def latest(self) -> Variant | None:
        """The variant that was observed last."""
        return self.pending or (self.variants[0] if self.variants else None)

    @property
    def line(self) -> UserLine:
        """The line of its first statement."""
        return UserLine(path=self.path, number=self.region.first)

    def overlaps(self, other: Step) -> bool:
        """Return whether they have lines in common."""
        mine, its = self.region, other.region
        return self.path == other.path and mine.first <= its.last and its.first <= mine.last

    def covers(self, line: UserLine) -> bool:
        """Return whether a line is in the region, or behind it in its block."""
        region = self.region
        return self.path == line.path and region.first <= line.number <= region.end_of_block

    def what_changes(self, call: Call) -> str:
        """Return the name of what is another value than when it was observed last."""
        if self.latest is None:
            return "what it reads"
        reads = self.latest.reads
        structures = call.with_numbers(self.latest.places).structures
        pairs = zip(self.region.parameters, reads.structures, structures, strict=True)
        name = next((name for name, old, new in pairs if old != new), None)
        return name or reads.changed() or "what it reads"

    def forget_numbers(self, variant: Variant, problem: Exception) -> None:
        """Leave numbers to Python that cannot be arguments: each value has a trace of its own.

        Args:
            variant: Variant that they are arguments of.
            problem: Exception of the variant.
        """
        places = problem.places if isinstance(problem, UsedByPython) else variant.places
        self.for_python |= places or variant.places
        self.variants = [kept for kept in self.variants if kept is not variant]
        self.pending = None
        self.num_observed = 0
