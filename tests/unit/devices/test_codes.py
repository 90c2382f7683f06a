from __future__ import annotations

import re
from pathlib import Path

import evener

SOURCES = Path(evener.__file__).parent / "devices"
ROOT = Path(__file__).parents[3]
CODE = re.compile(r'"(DEV-\d{3})"')


def test_every_code_is_documented_and_tested() -> None:
    raised = {code for path in SOURCES.glob("*.py") for code in CODE.findall(path.read_text())}
    documented = re.findall(
        r"^\| (DEV-\d{3}) \|", (ROOT / "src/evener/doctor/pages/errors.md").read_text(), re.M
    )
    assert sorted(raised) == sorted(documented)
    tests = "".join(p.read_text() for p in Path(__file__).parent.glob("test_*.py"))
    assert [code for code in raised if code not in tests] == []
