"""Rules on the text: ``found.txt`` has programs with a mistake, ``nearly.txt`` some without.

Each program stands behind a line with the code that is found in it, or is not.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evener.doctor import Severity
from unit.doctor.cases import codes, machine, read, write


def programs(name: str) -> list[tuple[str, str]]:
    text = (Path(__file__).with_name(name)).read_text(encoding="utf-8")
    return re.findall(r"^=== (\S+)\n(.*?)(?=^=== |\Z)", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("code", "program"), programs("found.txt"))
def test_found(code: str, program: str, tmp_path: Path) -> None:
    findings = read(write(program, tmp_path), machine(24, 24))
    finding = next((each for each in findings if each.code == code), None)
    assert finding is not None, codes(findings)
    assert finding.line > 3 and all((finding.what, finding.why, finding.fix, finding.evidence))


@pytest.mark.parametrize(("code", "program"), programs("nearly.txt"))
def test_not_found(code: str, program: str, tmp_path: Path) -> None:
    assert code not in codes(read(write(program, tmp_path), machine(24, 24)))


CLEAN = sorted((Path(__file__).parents[2] / "corpus/idiomatic").rglob("*.py"))


@pytest.mark.parametrize("path", CLEAN, ids=lambda path: path.stem)
def test_clean_programs_have_no_finding(path: Path) -> None:
    found = [str(each) for each in read(path) if each.severity is not Severity.HINT]
    assert found == []
