"""Score `evener doctor` on posted programs: recall, precision, misses, false alarms.

``.venv/bin/python tools/score_posted.py FOLDER`` reads the programs of FOLDER that
``tests/corpus/posted.toml`` names; that file has their sources and the findings that are expected
of each. The doctor reads them without running them, and assumes two GPUs.
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
# Tolerance in lines: a call may begin above the line to change. The doctor's corpus has the same.
NEAR = 2
NO_RULE = "none"
_ALSO_LINE = re.compile(r"also line (\d+)")


class Half(Enum):
    """Halves a and b have the first 100 programs, c and d the second, e and f the recent ones.

    Halves g and h have whole threads of 2019 to 2024, i and j programs of 2019 to 2025.

    Halves a, c, e, g and i are for development; b, d, f, h and j are held out.
    """

    A = "a"
    B = "b"
    C = "c"
    D = "d"
    E = "e"
    F = "f"
    G = "g"
    H = "h"
    I = "i"  # noqa: E741
    J = "j"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Finding that a program should have, or may have.

    Args:
        code: Code of the rule; "none" if no rule covers the mistake.
        line_ranges: First and last lines of the ranges in which the finding may be; any will do.
        words: Mistake, in a few words.
        is_demanded: Whether the doctor must report it.
    """

    code: str
    line_ranges: tuple[tuple[int, int], ...]
    words: str
    is_demanded: bool

    def distance(self, line: int) -> int:
        """Return the distance of a line from the nearest range, in lines; 0 inside a range."""
        return min(max(first - line, line - last, 0) for first, last in self.line_ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """A posted program, with the expected findings.

    Args:
        name: Name of its file.
        half: Half that it belongs to.
        expectations: Expected findings.
        first: Codes that would answer its author as the first finding; empty if not said.
    """

    name: str
    half: Half
    expectations: tuple[Expectation, ...]
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Findings of the doctor in one program, compared with the expectations.

    Args:
        found: Demanded expectations that a finding meets.
        missed: Demanded expectations that no finding meets.
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
    line_ranges = tuple((int(each[0]), int(each[-1])) for each in ends)
    return Expectation(code=code, line_ranges=line_ranges, words=words, is_demanded=is_demanded)


def read_posted(path: Path, *, is_corrected: bool) -> tuple[Posted, ...]:
    """Read the file of expectations, as first written or as corrected afterwards."""
    tables = tomllib.loads(path.read_text("utf-8"))["program"]
    return tuple(_posted(table, is_corrected=is_corrected) for table in tables)


def _posted(table: dict[str, Any], *, is_corrected: bool) -> Posted:
    chosen = {**table, **table.get("corrected", {})} if is_corrected else table
    return Posted(
        name=table["name"],
        half=Half(table["half"]),
        first=tuple(chosen.get("first", ())),
        expectations=tuple(
            read_expectation(text, is_demanded=key == "must")
            for key in ("must", "may")
            for text in chosen.get(key, ())
        ),
    )


def lines_of(finding: Finding) -> tuple[int, ...]:
    """Return the lines that a finding names: its own, and those of its evidence."""
    also = (_ALSO_LINE.match(each) for each in finding.evidence)
    return finding.line, *(int(each[1]) for each in also if each)


def scored(expectations: Iterable[Expectation], findings: Sequence[Finding]) -> Score:
    """Compare findings with expectations.

    Each line of a finding meets at most one demanded expectation: two removed names in adjacent
    lines need two findings.
    """
    every = tuple(expectations)
    demanded = [expectation for expectation in every if expectation.is_demanded]
    lines = [(finding, line) for finding in findings for line in lines_of(finding)]
    pairs = sorted(
        (expectation.distance(line), expected, named)
        for expected, expectation in enumerate(demanded)
        for named, (finding, line) in enumerate(lines)
        if expectation.code == finding.code and expectation.distance(line) <= NEAR
    )
    met: set[int] = set()
    used: set[int] = set()
    for _, expected, named in pairs:
        if expected not in met and named not in used:
            met.add(expected)
            used.add(named)
    right = tuple(finding for finding in findings if any(_meets(finding, each) for each in every))
    return Score(
        found=tuple(
            expectation for expected, expectation in enumerate(demanded) if expected in met
        ),
        missed=tuple(
            expectation for expected, expectation in enumerate(demanded) if expected not in met
        ),
        right=right,
        wrong=tuple(finding for finding in findings if finding not in right),
    )


def _meets(finding: Finding, expected: Expectation) -> bool:
    near = any(expected.distance(line) <= NEAR for line in lines_of(finding))
    return finding.code == expected.code and near


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of the programs.", exists=True)],
    half: Annotated[
        list[Half] | None, typer.Option(help="Half to score; repeatable. Default: all.")
    ] = None,
    file: Annotated[
        Path, typer.Option(help="Expected findings.", exists=True, dir_okay=False)
    ] = EXPECTATIONS,
    corrected: Annotated[
        bool, typer.Option("--corrected", help="Use the labels that were corrected afterwards.")
    ] = False,
) -> None:
    """Score the doctor on the posted programs of FOLDER, assuming two GPUs."""
    console = Console(soft_wrap=True, highlight=False)
    chosen = [
        program
        for program in read_posted(file, is_corrected=corrected)
        if not half or program.half in half
    ]
    absent = [program.name for program in chosen if not (folder / program.name).is_file()]
    if absent:
        console.print(f"{folder} has no {absent[0]}, and {len(absent) - 1} more are missing.")
        raise typer.Exit(2)
    scores: dict[str, Score] = {}
    seconds: list[float] = []
    firsts: list[bool] = []
    for program in chosen:
        start = time.perf_counter()
        findings = diagnose(folder / program.name, num_gpus=2).findings
        seconds.append(time.perf_counter() - start)
        scores[program.name] = scored(program.expectations, findings)
        if program.first:
            firsts.append(bool(findings) and _answers(program, scores[program.name], findings[0]))
    _print_errors(console, folder, scores)
    _print_codes(console, scores.values())
    _print_totals(console, scores.values(), seconds)
    if firsts:
        num_right = sum(firsts)
        console.print(f"first finding right  {_share(num_right, len(firsts) - num_right)}")


def _answers(program: Posted, score: Score, first: Finding) -> bool:
    return first in score.right and first.code in program.first


def _print_errors(console: Console, folder: Path, scores: dict[str, Score]) -> None:
    for name, score in scores.items():
        for expectation in score.missed:
            position = f"{folder / name}:{expectation.line_ranges[0][0]}"
            console.print(f"missed  {expectation.code:8}{position}  {expectation.words}")
        for finding in score.wrong:
            position = f"{folder / name}:{finding.line}"
            console.print(
                f"wrong   {finding.code:8}{position}  {finding.severity.value}: {finding.what}",
                markup=False,
            )


def _print_codes(console: Console, scores: Iterable[Score]) -> None:
    counts: dict[str, Counter[str]] = {name: Counter() for name in Score.__dataclass_fields__}
    for score in scores:
        for name, counter in counts.items():
            counter.update(entry.code for entry in getattr(score, name))
    table = Table("code", *counts)
    for code in sorted(set().union(*counts.values())):
        table.add_row(code, *(str(counter[code]) for counter in counts.values()))
    console.print(table)


def _print_totals(console: Console, scores: Iterable[Score], seconds: Sequence[float]) -> None:
    every = tuple(scores)
    found = [expectation for score in every for expectation in score.found]
    missed = [expectation for score in every for expectation in score.missed]
    with_rule = [expectation for expectation in missed if expectation.code != NO_RULE]
    right = [finding for score in every for finding in score.right]
    wrong = [finding for score in every for finding in score.wrong]
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
