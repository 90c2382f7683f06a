"""Each rule and many errors have a page; the list of rules in the documents is true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from evener import doctor
from evener.doctor import Family, Rule, all_rules
from evener.doctor.endings import successor_in
from evener.doctor.rules import explain, has_page, known_codes

PAGES = Path(doctor.__file__).parent / "pages"
SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EVERY_PAGE = sorted([*PAGES.glob("[A-Z]*-[0-9]*.md"), *(PAGES / "errors").glob("*.md")])

RULES = [pytest.param(rule, id=rule.code) for rule in all_rules()]


def sections_of(rule: Rule) -> dict[str, str]:
    return dict(SECTION.findall((PAGES / f"{rule.code}.md").read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", EVERY_PAGE, ids=lambda path: path.stem)
def test_a_page_says_what_happens_and_shows_wrong_and_right_code(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# {path.stem}: ")
    found = dict(SECTION.findall(text))
    assert len(found["What happens, and why"].split()) > 10
    assert CODE.findall(found["Wrong"])
    right = PROGRAM.findall(found["Right"])
    assert right
    for program in right:
        ast.parse(program)


def test_a_pointer_leads_to_a_page() -> None:
    for code in known_codes():
        text = explain(code)
        assert text is not None
        assert has_page(code) == ("## Right" in text)
    assert not has_page("PLAN-020")
    assert has_page("ENG-050")
    errors = {path.stem for path in (PAGES / "errors").glob("*.md")}
    assert errors <= set(known_codes())


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_a_page_with_its_code_and_title(rule: Rule) -> None:
    text = (PAGES / f"{rule.code}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {rule.code}: {rule.title}\n")
    assert len(rule.reason) > 20
    assert "How it is detected" in sections_of(rule)


def test_no_page_without_a_rule() -> None:
    codes = {rule.code for rule in all_rules()}
    pages = {path.stem for path in PAGES.glob("[A-Z]*-[0-9]*.md")}
    assert pages == codes
    assert len(codes) == len(all_rules())


def test_every_family_has_rules() -> None:
    assert {rule.family for rule in all_rules()} == set(Family)


def test_the_list_in_the_documents_is_that_of_the_rules() -> None:
    text = (Path(__file__).parents[3] / "docs/commands/doctor.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[([A-Z]+-\d+)\]\(.*/\1\.md\) \| (.+) \|$", text, re.MULTILINE)
    assert rows == [(r.code, f"{r.family.value}: {r.title}") for r in all_rules()]


def test_every_row_of_the_page_on_names_that_are_gone_is_a_successor() -> None:
    text = (PAGES / "DOC-004.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| `(.+?)` ", text, re.MULTILINE)
    assert len(names) > 70
    for name in names:
        module, _, last = name.rpartition(".")
        # As TensorFlow's own errors write it.
        module = re.sub(r"^tf\b", "tensorflow", module)
        who = f"module '{module}'" if module else "'Model' object"
        assert successor_in(f"{who} has no attribute '{last}'"), name
