"""Fixes are held to a second reading, and the rest of a file stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evener.analysis import Location, Module
from evener.doctor import Case, Family, Rule, Severity, examine
from evener.doctor.edit import Edit, replaced
from evener.doctor.fix import Fixed, fix_for
from evener.doctor.rule import Violation
from unit.doctor.programs import surroundings_of
from unit.doctor.test_corpus import NUM_GPUS, programs_in
from unit.doctor.test_fix_rules import FIXES, fixed, text_of


@pytest.mark.parametrize("kind", ["idiomatic", "nearly"])
def test_good_programs_are_left_alone(kind: str) -> None:
    for path in programs_in(kind):
        found = examine(path, surroundings_of(path.read_text("utf-8"), num_gpus=NUM_GPUS[kind]))
        assert not found.fixes, path


def test_fixes_of_the_corpus_hold_and_are_all(tmp_path: Path) -> None:
    codes: list[str] = []
    for path in programs_in("mistakes"):
        surroundings = surroundings_of(path.read_text("utf-8"), num_gpus=NUM_GPUS["mistakes"])
        found = fix_for(path, surroundings)
        assert not found.left_out, path
        codes += [fix.code for fix in found.made]
        contents = {name: after for name, (_, after) in found.contents.items()}
        for name, after in contents.items():
            compile(after, name, "exec")
        assert not examine(path, surroundings, contents=contents).fixes
    assert {"DOC-004", "DOC-215", "DOC-407", "ENG-003"} <= set(codes)


def rule_of(code: str, old: str, edits: Callable[[Module, int], tuple[Edit, ...]]) -> Rule:
    """Return a rule that finds a word at the beginning of lines, and offers edits of each."""

    def check(case: Case) -> Iterator[Violation]:
        for module in case.program.modules:
            for number, line in enumerate(module.lines, start=1):
                if line.startswith(old):
                    location = Location(path=module.path, line=number, text=line)
                    yield Violation(location, "", why="", fix="", edits=edits(module, number))

    return Rule(code, Family.PROGRAM, Severity.ERROR, "", check)


def to(new: str, length: int) -> Callable[[Module, int], tuple[Edit, ...]]:
    return lambda module, line: (replaced(module, (line, 0), (line, length), new),)


def none(module: Module, line: int) -> tuple[Edit, ...]:
    return ()


def by_rules(program: str, folder: Path, *rules: Rule) -> Fixed:
    (folder / "train.py").write_text(program, "utf-8")
    return fix_for(folder / "train.py", surroundings_of("", num_gpus=1), rules)


def test_a_fix_that_brings_another_finding_is_named_and_not_made(tmp_path: Path) -> None:
    rules = (
        rule_of("A", "bad", to("new", 3)),
        rule_of("B", "new", none),
        rule_of("C", "old", to("now", 3)),
    )
    found = by_rules("bad\nold\n", tmp_path, *rules)
    assert text_of(found, "") == "bad\nnow\n"
    assert [(left.fix.code, left.reason) for left in found.left_out] == [
        ("A", "with it the doctor would find B")
    ]
    assert set(found.after.num_violations) == {"A"}


@pytest.mark.parametrize("new", ["bad2", "("])
def test_a_fix_that_fixes_nothing_or_breaks_the_file_is_not_made(new: str, tmp_path: Path) -> None:
    found = by_rules("bad\n", tmp_path, rule_of("A", "bad", to(new, 3)))
    assert not found.contents and len(found.left_out) == 1


def test_of_fixes_that_overlap_the_first_is_made_and_the_other_named(tmp_path: Path) -> None:
    rules = rule_of("A", "bad", to("god", 3)), rule_of("B", "bad", to("", 2))
    found = by_rules("bad\n", tmp_path, *rules)
    assert text_of(found, "") == "god\n"
    assert [fix.code for fix in found.made] == ["A"]
    assert [(left.fix.code, left.reason) for left in found.left_out] == [
        ("B", "it overlaps another fix, which was made")
    ]


STYLES = st.tuples(
    st.lists(st.sampled_from(sorted(FIXES)), min_size=1, max_size=6),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([("", "utf-8"), ("", "utf-8-sig"), ("# coding: latin-1\n", "latin-1")]),
    st.sampled_from(["", "# \x0c form feed\n", "# ü\n", '"""a\tb"""\n']),
    st.booleans(),
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(STYLES)
def test_twice_is_once_and_the_rest_stays(
    tmp_path: Path, style: tuple[list[str], str, tuple[str, str], str, bool]
) -> None:
    names, line_end, (first, encoding), between, is_ended = style
    parts = [first]
    wanted = [first]
    for name in names:
        before, old, new = FIXES[name]
        parts.append(f"{between}{before}{old}\n")
        wanted.append(f"{between}{before}{new}\n")
    program, after = ("".join(part) if is_ended else "".join(part)[:-1] for part in (parts, wanted))
    found = fixed(program.replace("\n", line_end).encode(encoding), tmp_path)
    path = str(tmp_path / "train.py")
    if not found.left_out and len(set(names)) == len(names):
        # Names that one part makes may be known in another, so that less is certain there.
        now = found.contents.get(path, (b"", program.replace("\n", line_end).encode(encoding)))[1]
        allowed = {line for text in (program, after) for line in text.split("\n")}
        assert set(now.decode(encoding).replace(line_end, "\n").split("\n")) <= allowed
    if path in found.contents:
        again = fixed(found.contents[path][1], tmp_path)
        assert not again.contents
