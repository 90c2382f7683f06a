"""The corpus that the doctor is judged by: each program parses, each code has its programs."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from evener.doctor import all_rules
from unit.doctor.test_pages import WITHOUT_PROGRAMS

CORPUS = Path(__file__).parents[2] / "corpus"
KINDS = ("mistakes", "nearly", "idiomatic")
# DOC-001 to 003 and those of a run are about files and processes, not about what is written in
# a program that parses: their tests make their own.
CODES = [rule.code for rule in all_rules() if rule.code not in WITHOUT_PROGRAMS]
HEADERS = re.compile(
    r"machine: \d+ GPUs?|environment: [A-Z_]+=.*|package: [\w-]+ [\w.]+|driver: \d+(\.\d+)+"
)
MARK = re.compile(r"# (finding|may): ([A-Z]{3}-\d{3}(?:, [A-Z]{3}-\d{3})*)(?=$|  # )")
# Enough for the doctor's share of right answers to mean something.
LEAST_PROGRAMS = {"mistakes": 60, "nearly": len(CODES), "idiomatic": 20}


def programs(kind: str) -> list[Path]:
    folder = CORPUS / kind
    return sorted([*folder.glob("*.py"), *folder.glob("*/main.py")])


def files(kind: str) -> list[Path]:
    folder = CORPUS / kind
    return sorted([*folder.rglob("*.py"), *folder.rglob("requirements.txt")])


def comments_of(path: Path) -> Iterator[tuple[int, str]]:
    """Every comment with its line; what a string says is no comment."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from (
            (number, line[line.index("#") :])
            for number, line in enumerate(text.splitlines(), 1)
            if "#" in line
        )
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@functools.cache
def marks_of(path: Path) -> tuple[tuple[int, str, str], ...]:
    """Line, ``finding`` or ``may``, and code of every mark."""
    return tuple(
        (line, word, code)
        for line, comment in comments_of(path)
        for word, codes in MARK.findall(comment)
        for code in codes.split(", ")
    )


def is_part_of(path: Path, program: Path) -> bool:
    return path == program or (program.name == "main.py" and program.parent in path.parents)


def name_of(path: Path) -> str:
    return str(path.relative_to(CORPUS))


ALL_FILES = [path for kind in KINDS for path in files(kind)]


@pytest.mark.parametrize("kind", KINDS)
def test_there_are_enough_programs(kind: str) -> None:
    assert len(programs(kind)) >= LEAST_PROGRAMS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_parses(kind: str) -> None:
    for path in files(kind):
        if path.suffix == ".py":
            ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def test_nothing_that_looks_like_a_mark_is_misspelt() -> None:
    for path in ALL_FILES:
        for line, comment in comments_of(path):
            where = f"{name_of(path)}:{line}: {comment}"
            words = re.findall(r"# ?(finding|may)s?\b *:", comment, re.IGNORECASE)
            assert len(words) == len(MARK.findall(comment)), where
        for line, _, code in marks_of(path):
            assert code in CODES, f"{name_of(path)}:{line}: {code}"


def test_headers_say_what_a_machine_can_be() -> None:
    for path in ALL_FILES:
        for line, comment in comments_of(path):
            if re.match(r"# (machine|environment|package|driver)\b", comment):
                where = f"{name_of(path)}:{line}"
                assert HEADERS.fullmatch(comment.removeprefix("# ")), where
                # They are read off the first lines of the program.
                assert line <= 6 and path in programs(path.relative_to(CORPUS).parts[0]), where


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_a_program_with_it_and_one_nearly(code: str) -> None:
    marked = {
        name_of(path)
        for path in files("mistakes")
        for _, word, found in marks_of(path)
        if (word, found) == ("finding", code)
    }
    assert marked
    assert CORPUS / "nearly" / f"{code.lower().replace('-', '_')}.py" in programs("nearly")


def test_every_program_of_mistakes_has_one() -> None:
    for program in programs("mistakes"):
        parts = [path for path in files("mistakes") if is_part_of(path, program)]
        words = [word for path in parts for _, word, _ in marks_of(path)]
        assert "finding" in words, name_of(program)


@pytest.mark.parametrize("kind", ["nearly", "idiomatic"])
def test_the_others_have_none(kind: str) -> None:
    for path in files(kind):
        assert "finding" not in {word for _, word, _ in marks_of(path)}, name_of(path)


@pytest.mark.parametrize("kind", KINDS)
def test_the_readme_counts_right(kind: str) -> None:
    text = (CORPUS / "README.md").read_text(encoding="utf-8")
    assert f"| `{kind}/` | {len(programs(kind))} |" in text
    if kind != "mistakes":
        return
    findings = [
        {
            code
            for path in files(kind)
            if is_part_of(path, program)
            for _, word, code in marks_of(path)
            if word == "finding"
        }
        for program in programs(kind)
    ]
    for code in CODES:
        holders = sum(code in found for found in findings)
        assert re.search(rf"^\| {code} \| {holders} \|", text, re.MULTILINE), code
