"""Each rule has a page; what it shows as wrong is found, and what it shows as right is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evener import doctor
from evener.doctor import Family, Rule, Severity, all_rules
from unit.doctor.programs import findings_of

PAGES = Path(doctor.__file__).parent / "pages"
SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What a page cannot show as a program that is read: it takes a run, or a file that is no Python.
WITHOUT_PROGRAMS = {"DOC-001", "DOC-002", "DOC-003", *(f"DOC-{i:03}" for i in range(10, 20))}

RULES = [pytest.param(rule, id=rule.code) for rule in all_rules()]


def sections_of(rule: Rule) -> dict[str, str]:
    return dict(SECTION.findall((PAGES / f"{rule.code}.md").read_text(encoding="utf-8")))


def codes_found(program: str, folder: Path) -> dict[str, Severity]:
    path = folder / "train.py"
    path.write_text(program, encoding="utf-8")
    return {finding.code: finding.severity for finding in findings_of(path, num_gpus=2)}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_a_page_with_its_code_and_title(rule: Rule) -> None:
    text = (PAGES / f"{rule.code}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {rule.code}: ")
    assert "How it is detected" in sections_of(rule)


def test_no_page_without_a_rule() -> None:
    codes = {rule.code for rule in all_rules()}
    pages = {path.stem for path in PAGES.glob("[A-Z]*-[0-9]*.md")}
    assert pages == codes
    assert len(codes) == len(all_rules())


def test_every_family_has_rules() -> None:
    assert {rule.family for rule in all_rules()} == set(Family)


@pytest.mark.parametrize("rule", RULES)
def test_what_a_page_shows_as_wrong_is_found_and_what_is_right_is_not(
    rule: Rule, tmp_path: Path
) -> None:
    sections = sections_of(rule)
    if rule.code in WITHOUT_PROGRAMS:
        assert not PROGRAM.findall(sections.get("Wrong", ""))
        return
    wrong, right = (PROGRAM.findall(sections[name]) for name in ("Wrong", "Right"))
    assert wrong and right
    for program in wrong:
        assert rule.code in codes_found(program, tmp_path)
    for program in right:
        assert rule.code not in codes_found(program, tmp_path)


def test_the_list_in_the_documents_is_that_of_the_rules() -> None:
    text = (Path(__file__).parents[3] / "docs/commands/doctor.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[([A-Z]+-\d+)\]\(.*/\1\.md\) \| (.+) \|$", text, re.MULTILINE)
    assert rows == [(r.code, f"{r.family.value}: {r.title}") for r in all_rules()]
