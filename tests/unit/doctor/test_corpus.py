"""Recall and precision of the doctor on a corpus of programs.

    mistakes/    programs with known mistakes, marked on their lines
    nearly/      programs that nearly make them
    idiomatic/   good programs

Run it with ``-s`` to see the figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from evener.doctor import Finding, Severity, all_rules
from unit.doctor.programs import Mark, findings_of, marks_in

CORPUS = Path(__file__).parents[2] / "corpus"
# A call may begin above the line that has to be changed.
NEAR = 2
# Unless a program's first lines say otherwise.
NUM_GPUS = {"mistakes": 2, "nearly": 1, "idiomatic": 1}


def programs_in(kind: str) -> Iterator[Path]:
    for path in sorted((CORPUS / kind).iterdir()):
        if path.suffix == ".py" and path.stem != "__init__":
            yield path
        elif (path / "main.py").exists():
            yield path / "main.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Findings of the doctor in one program, compared with the marks in it.

    A code that is marked on several lines of a program is one mistake, and each of the lines is
    as good to point to.
    """

    path: Path
    found: frozenset[str]
    missed: frozenset[str]
    right: tuple[Finding, ...]
    wrong: tuple[Finding, ...]


@cache
def judged(path: Path, kind: str) -> Judged:
    files = [path]
    if path.name == "main.py":
        files = [file for file in path.parent.rglob("*") if file.suffix in (".py", ".txt")]
    marks = [mark for file in files for mark in marks_in(file)]
    findings = findings_of(path, num_gpus=NUM_GPUS[kind])
    right = tuple(f for f in findings if any(means(mark, f) for mark in marks))
    demanded = frozenset(mark.code for mark in marks if mark.demanded)
    return Judged(
        path=path,
        found=demanded & {finding.code for finding in right},
        missed=demanded - {finding.code for finding in right},
        right=right,
        wrong=tuple(f for f in findings if f not in right and f.severity is not Severity.HINT),
    )


def means(mark: Mark, finding: Finding) -> bool:
    same = (mark.file, mark.code) == (finding.file, finding.code)
    return same and abs(mark.line - finding.line) <= NEAR


def everything() -> list[Judged]:
    return [judged(path, kind) for kind in NUM_GPUS for path in programs_in(kind)]


def test_recall_and_precision() -> None:
    every = everything()
    num_found, num_missed = (
        sum(len(getattr(score, name)) for score in every) for name in ("found", "missed")
    )
    num_right, num_wrong = (
        sum(len(getattr(score, name)) for score in every) for name in ("right", "wrong")
    )
    recall = num_found / (num_found + num_missed)
    precision = num_right / (num_right + num_wrong)
    for score in every:
        name = str(score.path.relative_to(CORPUS))
        for code in sorted(score.missed):
            print(f"missed  {code}  {name}")
        for finding in score.wrong:
            print(f"wrong   {finding.code}  {name}  {finding.line}: {finding.what}")
    sizes = ", ".join(f"{len(list(programs_in(kind)))} {kind}" for kind in NUM_GPUS)
    print(f"programs: {sizes}; mistakes marked: {num_found + num_missed}")
    print(f"recall {recall:.3f} ({num_found} found, {num_missed} missed)")
    print(f"precision {precision:.3f} ({num_right} right, {num_wrong} wrong)")
    assert recall >= 0.95
    assert precision >= 0.95


@pytest.mark.parametrize("path", [*programs_in("idiomatic")], ids=lambda path: path.stem)
def test_a_good_program_gets_no_more_than_hints(path: Path) -> None:
    told = [str(f) for f in findings_of(path, num_gpus=1) if f.severity is not Severity.HINT]
    assert not told


def test_the_corpus_is_large_enough() -> None:
    assert len(list(programs_in("mistakes"))) >= 45
    assert len(list(programs_in("idiomatic"))) >= 15


def test_every_rule_that_reads_is_in_the_corpus() -> None:
    from unit.doctor.test_pages import WITHOUT_PROGRAMS

    marked = Counter(m.code for path in (CORPUS / "mistakes").rglob("*.py") for m in marks_in(path))
    missing = {rule.code for rule in all_rules()} - set(marked) - WITHOUT_PROGRAMS
    assert not missing
    nearly = {path.stem.upper().replace("_", "-") for path in programs_in("nearly")}
    assert {rule.code for rule in all_rules()} - nearly <= WITHOUT_PROGRAMS
