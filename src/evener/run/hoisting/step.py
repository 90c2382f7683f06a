"""A region of a program, and what became of it while the program runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from evener.analysis.hoisting import Region
from evener.run.hoisting.reads import Call
from evener.run.hoisting.symbolic import UsedByPython
from evener.run.hoisting.variant import Variant
from evener.run.user_line import UserLine


@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """A region of the script, and what became of it.

    Args:
        region: The region.
        path: Its file.
        variants: What was traced, the latest first.
        pending: What was observed and not traced yet.
        to_observe: The call that is to be observed, and its variant if there is one already.
        num_observed: How many sets of values were observed.
        num_calls: How often it ran on all devices alone.
        num_attempts: How often variables were made while it was traced.
        for_python: Arguments that are numbers which Python itself uses: no arguments of a graph.
        obstacle: What keeps it from all devices.
        is_noted: Whether it was said that it runs on all devices.
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
            variant: The variant that they are arguments of.
            problem: What the variant ended with.
        """
        places = problem.places if isinstance(problem, UsedByPython) else variant.places
        self.for_python |= places or variant.places
        self.variants = [one for one in self.variants if one is not variant]
        self.pending = None
        self.num_observed = 0
