"""Every PLAN error: it says what happened and where, why, and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import evener.plan
from evener.errors import PlanError
from evener.plan import parse_device_name
from unit.plan.error_cases import Case, json_cases, plan_cases, share_cases

CASES = [*plan_cases.CASES, *json_cases.CASES, *share_cases.CASES]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_error_says_what_why_and_what_to_do(case: Case) -> None:
    with pytest.raises(PlanError) as caught:
        case.make()
    assert caught.value.code == case.code, str(caught.value)
    assert case.what in caught.value.what
    assert case.why in caught.value.why
    assert case.fix in caught.value.fix
    assert str(caught.value).startswith(f"[{case.code}] ")


def test_every_code_is_raised_once_tested_and_documented() -> None:
    folder = Path(evener.plan.__file__).parent
    rebalancing = folder.parent / "planner" / "rebalancing.py"
    raised = [
        code
        for file in (*folder.glob("*.py"), rebalancing)
        for code in re.findall(r'"(PLAN-\d{3})"', file.read_text(encoding="utf-8"))
    ]
    assert len(raised) == len(set(raised))
    assert set(raised) == {case.code for case in CASES}
    docs = folder.parent / "doctor" / "pages" / "errors.md"
    documented = re.findall(r"^\| (PLAN-\d{3}) \|", docs.read_text(encoding="utf-8"), re.MULTILINE)
    # Some codes of plans are raised by the engine, which knows the devices.
    assert set(raised) <= set(documented)
    assert documented == sorted(set(documented))


@pytest.mark.parametrize(
    "text",
    ["", "gpu", "gpu:", "gpu:-1", "gpu:00", "gpu:1 ", "GPU:0", "tpu:0", "gpu:٣", "gpu:9999999",
     "worker/gpu:0", "worker:1gpu:0", "worker:01/gpu:0", "worker:-1/gpu:0", "gpu:0\n", "host"],
)  # fmt: skip
def test_no_device_names(text: str) -> None:
    with pytest.raises(PlanError, match="PLAN-001"):
        parse_device_name(text)
