"""Score `evener doctor` on programs that people posted: recall, precision, misses, false alarms.

``.venv/bin/python tools/score_posted.py FOLDER`` reads the programs of FOLDER that
``tests/corpus/posted.toml`` names; that file says where they come from, and what is expected of
each. They are read, not run, and judged for a machine with two GPUs.
"""

from __future__ import annotations

import re
import statistics
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from evener.doctor import Finding, Severity, diagnose

EXPECTATIONS = Path(__file__).parents[1] / "tests/corpus/posted.toml"
# A call may begin above the line that has to be changed; as in the doctor's own corpus.
NEAR = 2
NO_RULE = "none"
_ALSO_LINE = re.compile(r"also line (\d+)")


class Half(Enum):
    """Halves a and b have the first 100 programs, c and d the second.

    Halves a and c are to work with; b and d are only scored.
    """

    A = "a"
    B = "b"
    C = "c"
    D = "d"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a person wants to be told about one program.

    Args:
        code: The rule's code; "none" for what no rule finds.
        places: Ranges of lines, first and last, each as good to point to as the others.
        words: What is wrong, in a few words.
        is_demanded: Whether a doctor that is silent is wrong.
    """

    code: str
    places: tuple[tuple[int, int], ...]
    words: str
    is_demanded: bool

    def distance(self, line: int) -> int:
        """Return how many lines away from the nearest place a line is."""
        return min(max(first - line, line - last, 0) for first, last in self.places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """A program that somebody posted, by name."""

    name: str
    half: Half
    expectations: tuple[Expectation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What the doctor says of one program, against what is expected.

    Args:
        found: The demanded expectations that a finding meets.
        missed: The other demanded ones.
        right: The findings that meet any expectation.
        wrong: The other findings.
    """

    found: tuple[Expectation, ...]
    missed: tuple[Expectation, ...]
    right: tuple[Finding, ...]
    wrong: tuple[Finding, ...]


def read_expectation(text: str, *, is_demanded: bool) -> Expectation:
    """Read ``"DOC-004 19,33-35 words"``.

    Raises:
        ValueError: The text has another form.
    """
    match = re.fullmatch(r"(\S+) (\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*) (.+)", text)
    if match is None:
        raise ValueError(f"not an expectation: {text!r}. Write it as 'CODE LINES words'.")
    code, lines, words = match.groups()
    ends = [part.split("-") for part in lines.split(",")]
    places = tuple((int(each[0]), int(each[-1])) for each in ends)
    return Expectation(code=code, places=places, words=words, is_demanded=is_demanded)


def read_posted(path: Path, *, is_corrected: bool) -> tuple[Posted, ...]:
    """Read the file of expectations, as first written or as corrected afterwards."""
    tables = tomllib.loads(path.read_text("utf-8"))["program"]
    return tuple(_posted(table, is_corrected=is_corrected) for table in tables)


def _posted(table: dict[str, Any], *, is_corrected: bool) -> Posted:
    chosen = {**table, **table.get("corrected", {})} if is_corrected else table
    return Posted(
        name=table["name"],
        half=Half(table["half"]),
        expectations=tuple(
            read_expectation(text, is_demanded=key == "must")
            for key in ("must", "may")
            for text in chosen.get(key, ())
        ),
    )


def lines_of(finding: Finding) -> tuple[int, ...]:
    """Return the lines that a finding names: its own, and those that say the same."""
    also = (_ALSO_LINE.match(each) for each in finding.evidence)
    return finding.line, *(int(each[1]) for each in also if each)


def scored(expectations: Iterable[Expectation], findings: Sequence[Finding]) -> Score:
    """Compare findings with expectations.

    A line of a finding meets one demanded expectation: two removed names that stand side by side
    want two findings.
    """
    every = tuple(expectations)
    demanded = [one for one in every if one.is_demanded]
    lines = [(finding, line) for finding in findings for line in lines_of(finding)]
    pairs = sorted(
        (one.distance(line), which, place)
        for which, one in enumerate(demanded)
        for place, (finding, line) in enumerate(lines)
        if one.code == finding.code and one.distance(line) <= NEAR
    )
    met: set[int] = set()
    used: set[int] = set()
    for _, which, place in pairs:
        if which not in met and place not in used:
            met.add(which)
            used.add(place)
    right = tuple(one for one in findings if any(_meets(one, each) for each in every))
    return Score(
        found=tuple(one for which, one in enumerate(demanded) if which in met),
        missed=tuple(one for which, one in enumerate(demanded) if which not in met),
        right=right,
        wrong=tuple(one for one in findings if one not in right),
    )


def _meets(finding: Finding, expected: Expectation) -> bool:
    near = any(expected.distance(line) <= NEAR for line in lines_of(finding))
    return finding.code == expected.code and near


def main(
    folder: Annotated[Path, typer.Argument(help="Where the programs are.", exists=True)],
    half: Annotated[list[Half] | None, typer.Option(help="Only this half; repeatable.")] = None,
    corrected: Annotated[
        bool, typer.Option("--corrected", help="With the labels that were corrected afterwards.")
    ] = False,
) -> None:
    """Judge the posted programs of FOLDER for two GPUs, and print how well the doctor does."""
    console = Console(soft_wrap=True, highlight=False)
    chosen = [
        one
        for one in read_posted(EXPECTATIONS, is_corrected=corrected)
        if not half or one.half in half
    ]
    absent = [one.name for one in chosen if not (folder / one.name).is_file()]
    if absent:
        console.print(f"{folder} has no {absent[0]}, and {len(absent) - 1} more are missing.")
        raise typer.Exit(2)
    scores: dict[str, Score] = {}
    seconds: list[float] = []
    for one in chosen:
        start = time.perf_counter()
        findings = diagnose(folder / one.name, num_gpus=2).findings
        seconds.append(time.perf_counter() - start)
        scores[one.name] = scored(one.expectations, findings)
    _print_places(console, folder, scores)
    _print_codes(console, scores.values())
    _print_totals(console, scores.values(), seconds)


def _print_places(console: Console, folder: Path, scores: dict[str, Score]) -> None:
    for name, score in scores.items():
        for one in score.missed:
            console.print(f"missed  {one.code:8}{folder / name}:{one.places[0][0]}  {one.words}")
        for finding in score.wrong:
            place = f"{folder / name}:{finding.line}"
            console.print(
                f"wrong   {finding.code:8}{place}  {finding.severity.value}: {finding.what}",
                markup=False,
            )


def _print_codes(console: Console, scores: Iterable[Score]) -> None:
    counts: dict[str, Counter[str]] = {name: Counter() for name in Score.__dataclass_fields__}
    for score in scores:
        for name, counter in counts.items():
            counter.update(one.code for one in getattr(score, name))
    table = Table("code", *counts)
    for code in sorted(set().union(*counts.values())):
        table.add_row(code, *(str(counter[code]) for counter in counts.values()))
    console.print(table)


def _print_totals(console: Console, scores: Iterable[Score], seconds: Sequence[float]) -> None:
    every = tuple(scores)
    found = [one for score in every for one in score.found]
    missed = [one for score in every for one in score.missed]
    with_rule = [one for one in missed if one.code != NO_RULE]
    right = [one for score in every for one in score.right]
    wrong = [one for score in every for one in score.wrong]
    console.print(f"programs             {len(every)}")
    console.print(f"recall               {_share(len(found), len(missed))}")
    console.print(f"  of what has a rule {_share(len(found), len(with_rule))}")
    console.print(f"precision            {_share(len(right), len(wrong))}")
    above = [[f for f in group if f.severity is not Severity.HINT] for group in (right, wrong)]
    console.print(f"  above hints        {_share(len(above[0]), len(above[1]))}")
    num_findings = len(right) + len(wrong)
    console.print(f"findings per program {num_findings / max(len(every), 1):.2f}")
    if seconds:
        middle, longest = statistics.median(seconds), max(seconds)
        console.print(f"seconds per program  {middle:.2f} median, {longest:.2f} longest")


def _share(num_good: int, num_bad: int) -> str:
    total = num_good + num_bad
    return f"{num_good / total:.3f} ({num_good} of {total})" if total else "none"


if __name__ == "__main__":
    typer.run(main)
