from __future__ import annotations

import json

import pytest

from evener.auditing import (
    Audit,
    Collective,
    Copy,
    Fallback,
    Line,
    Operation,
)
from evener.errors import PlacementError

LINE = Line(path="/home/me/train.py", number=7)


def operation(name: str, used: str, kind: str) -> Operation:
    return Operation(name=name, type="Mul", requested=None, device=used, kind=kind, line=LINE)  # pyright: ignore


def copy(source: str, target: str, num_bytes: int | None) -> Copy:
    return Copy(
        tensor="t",
        num_bytes=num_bytes,
        source=source,
        target=target,
        kind="forward",
        line=LINE,
        needed_by=None,
    )


def fallback(reason: str) -> Fallback:
    return Fallback(
        operation="f",
        type="Sin",
        requested="gpu:7",
        device="cpu:0",
        reason=reason,
        why="w",
        line=None,
    )  # pyright: ignore


AUDIT = Audit(
    step="train.py: step",
    devices=("gpu:0", "cpu:0"),
    assume_gpus=True,
    kernels_from="table",
    operations=(
        operation("a", "gpu:0", "optimizer"),
        operation("b", "gpu:0", "forward"),
        operation("c", "cpu:0", "input"),
        operation("d", "gpu:0", "forward"),
    ),
    copies=(
        copy("cpu:0", "gpu:0", 12),
        copy("cpu:0", "gpu:0", None),
        copy("gpu:0", "cpu:0", 100),
    ),
    collectives=(
        Collective(operation="r", type="NcclAllReduce", device="gpu:0", num_bytes=4, line=None),
    ),
    fallbacks=(fallback("no_such_device"), fallback("host_memory"), fallback("beside")),
)


def test_totals_and_traffic_are_counted() -> None:
    assert [(t.device, t.kind, t.num_operations) for t in AUDIT.totals] == [
        ("cpu:0", "input", 1),
        ("gpu:0", "forward", 2),
        ("gpu:0", "optimizer", 1),
    ]
    assert [(w.source, w.num_copies, w.num_bytes, w.num_unknown) for w in AUDIT.traffic] == [
        ("gpu:0", 1, 100, 0),
        ("cpu:0", 2, 12, 1),
    ]
    assert AUDIT.moved_bytes == 112
    assert [finding.reason for finding in AUDIT.findings] == ["no_such_device"]


def test_an_audit_goes_to_json_and_back() -> None:
    text = AUDIT.to_json()
    assert Audit.from_json(text) == AUDIT
    written = json.loads(text)
    assert written["traffic"][0]["num_bytes"] == 100
    assert written["operations"][0]["line"] == {"path": "/home/me/train.py", "number": 7}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 2}', AUDIT.to_json().replace('"tensor"', '"tensors"')]
)
def test_a_text_that_is_no_audit_is_refused(text: str) -> None:
    with pytest.raises(PlacementError, match="PLACE-034"):
        Audit.from_json(text)


def test_reading_an_audit_needs_no_tensorflow(run_python) -> None:
    code = """
        import sys, evener, evener.auditing, evener.run.first_step
        evener.Audit
        print("tensorflow" in sys.modules)
    """
    assert run_python(code).stdout.strip() == "False"
