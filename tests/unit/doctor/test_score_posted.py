"""Counts of the tool that scores the doctor on posted programs, with made-up expectations."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

from evener.doctor import Finding, Severity, all_rules

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("score_posted", ROOT / "tools/score_posted.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their own module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def found(code: str, line: int, *evidence: str) -> Finding:
    return Finding(
        code=code,
        severity=Severity.WARNING,
        file="train.py",
        line=line,
        what="what",
        why="why",
        fix="fix",
        evidence=evidence,
    )


def counted(tool: ModuleType, must: list[str], may: list[str], *findings: Finding) -> list[int]:
    expectations = [
        tool.read_expectation(text, is_demanded=demanded)
        for texts, demanded in ((must, True), (may, False))
        for text in texts
    ]
    score = tool.scored(expectations, findings)
    return [len(group) for group in (score.found, score.missed, score.right, score.wrong)]


@pytest.mark.parametrize(
    ("must", "may", "findings", "expected"),
    [
        # found, missed, right, wrong
        (["DOC-201 10 one"], [], [found("DOC-201", 12)], [1, 0, 1, 0]),
        (["DOC-201 10 one"], [], [found("DOC-201", 13)], [0, 1, 0, 1]),
        (["DOC-201 10 one"], [], [found("DOC-202", 10)], [0, 1, 0, 1]),
        (["DOC-201 10,30-40 one"], [], [found("DOC-201", 35)], [1, 0, 1, 0]),
        ([], ["DOC-201 10 one"], [found("DOC-201", 10)], [0, 0, 1, 0]),
        ([], ["DOC-201 10 one"], [], [0, 0, 0, 0]),
        (["none 10 no rule"], [], [], [0, 1, 0, 0]),
        ([], [], [found("DOC-201", 10)], [0, 0, 0, 1]),
        # One finding does not say two things, though both are near.
        (["DOC-004 10 one", "DOC-004 11 two"], [], [found("DOC-004", 10)], [1, 1, 1, 0]),
        # The nearest finding is taken, and the other is left for the other expectation.
        (
            ["DOC-004 12 two", "DOC-004 10 one"],
            [],
            [found("DOC-004", 11), found("DOC-004", 12)],
            [2, 0, 2, 0],
        ),
        # Lines that say the same are named by one finding.
        (["DOC-201 50 one"], [], [found("DOC-201", 9, "also line 50: fit()")], [1, 0, 1, 0]),
    ],
)
def test_what_counts(
    tool: ModuleType,
    must: list[str],
    may: list[str],
    findings: list[Finding],
    expected: list[int],
) -> None:
    assert counted(tool, must, may, *findings) == expected


@pytest.mark.parametrize("text", ["DOC-201", "DOC-201 ten words", "DOC-201 10", "DOC-201 1-2-3 x"])
def test_what_is_no_expectation(tool: ModuleType, text: str) -> None:
    with pytest.raises(ValueError, match="not an expectation"):
        tool.read_expectation(text, is_demanded=True)


def test_corrections_stand_beside_what_was_first_written(tool: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "posted.toml"
    file.write_text(
        '[[program]]\nname = "a.py"\nhalf = "a"\nmust = ["DOC-201 1 one"]\nmay = ["DOC-401 2 x"]\n'
        "[program.corrected]\nmust = []\n",
        "utf-8",
    )
    codes = [
        [
            expectation.code
            for expectation in tool.read_posted(file, is_corrected=corrected)[0].expectations
        ]
        for corrected in (False, True)
    ]
    assert codes == [["DOC-201", "DOC-401"], ["DOC-401"]]


def test_the_expectations_can_be_read(tool: ModuleType) -> None:
    posted = tool.read_posted(tool.EXPECTATIONS, is_corrected=True)
    codes = {expectation.code for each in posted for expectation in each.expectations}
    assert len({program.name for program in posted}) == len(posted) >= 200
    assert codes - {tool.NO_RULE} <= {rule.code for rule in all_rules()} | {"DOC-001"}


RECENT = ROOT / "tests/corpus/posted_recent.toml"


def test_the_recent_expectations_can_be_read(tool: ModuleType) -> None:
    for is_corrected in (False, True):
        recent = tool.read_posted(RECENT, is_corrected=is_corrected)
        codes = {expectation.code for each in recent for expectation in each.expectations}
        assert codes - {tool.NO_RULE} <= {rule.code for rule in all_rules()}
    names = [program.name for program in recent]
    digests = [hashlib.sha1(name.encode()).digest() for name in names]
    assert digests == sorted(digests)
    assert [p.half.value for p in recent] == ["ef"[digest[-1] & 1] for digest in digests]
    assert len(names) == 40
    assert not set(names) & {p.name for p in tool.read_posted(tool.EXPECTATIONS, is_corrected=True)}


# The files that came after, in their order: halves, and number of programs.
LATER = {
    "posted_threads.toml": ("gh", 64),
    "posted_later.toml": ("ij", 46),
}


@pytest.mark.parametrize("file", LATER)
def test_later_expectations_can_be_read(tool: ModuleType, file: str) -> None:
    folder = RECENT.parent
    halves, count = LATER[file]
    for is_corrected in (False, True):
        programs = tool.read_posted(folder / file, is_corrected=is_corrected)
        codes = {expectation.code for each in programs for expectation in each.expectations}
        assert codes - {tool.NO_RULE} <= {rule.code for rule in all_rules()}
    names = [program.name for program in programs]
    assert len(set(names)) == len(names) == count
    digests = [hashlib.sha1(name.encode()).digest() for name in names]
    assert [p.half.value for p in programs] == [halves[digest[-1] & 1] for digest in digests]
    before = [*LATER][: [*LATER].index(file)]
    for other in (tool.EXPECTATIONS, RECENT, *(folder / name for name in before)):
        assert not set(names) & {p.name for p in tool.read_posted(other, is_corrected=True)}


def test_the_first_finding_is_counted(tool: ModuleType, tmp_path: Path) -> None:
    program = (
        "import keras\nprint(tf.GPU)\nm = keras.Sequential()\nm.fit(x, y)\n"
        "import tensorflow as tf\ntf.contrib\n"
    )
    (tmp_path / "a.py").write_text(program, "utf-8")
    file = tmp_path / "posted.toml"
    app = typer.Typer()
    app.command()(tool.main)
    for first, expected in (("DOC-201", "1.000 (1 of 1)"), ("DOC-004", "0.000 (0 of 1)")):
        file.write_text(
            '[[program]]\nname = "a.py"\nhalf = "e"\nmust = ["DOC-201 4 x", "DOC-004 6 y"]\n'
            f'first = ["{first}"]\n',
            "utf-8",
        )
        printed = CliRunner().invoke(app, [str(tmp_path), "--file", str(file)]).output
        assert f"first finding right  {expected}" in printed


def test_the_names_tell_the_order_and_the_halves(tool: ModuleType) -> None:
    names = [program.name for program in tool.read_posted(tool.EXPECTATIONS, is_corrected=False)]
    halves = [
        program.half.value for program in tool.read_posted(tool.EXPECTATIONS, is_corrected=False)
    ]
    digests = [hashlib.sha1(name.encode()).digest() for name in names]
    sets = ["ab"] * 100 + ["cd"] * 100
    assert digests == sorted(digests)
    assert halves == [
        programs[digest[-1] & 1] for programs, digest in zip(sets, digests, strict=True)
    ]


def test_one_half_of_several_can_be_scored(tool: ModuleType, tmp_path: Path) -> None:
    for program in tool.read_posted(tool.EXPECTATIONS, is_corrected=False):
        (tmp_path / program.name).write_text("import keras\n", "utf-8")
    app = typer.Typer()
    app.command()(tool.main)
    printed = [
        CliRunner().invoke(app, [str(tmp_path), *options]).output
        for options in (["--half", "c"], ["--half", "c", "--half", "d"])
    ]
    numbers = [re.search(r"^programs +(\d+)$", text, re.MULTILINE) for text in printed]
    assert [number and number[1] for number in numbers] == ["47", "100"]
