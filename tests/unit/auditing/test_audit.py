from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from evener.auditing import Audit, Collective, Copy, Fallback, Line, Operation, print_audit
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
    copies=(copy("cpu:0", "gpu:0", 12), copy("cpu:0", "gpu:0", None), copy("gpu:0", "cpu:0", 100)),
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


def printed(audit: Audit, width: int) -> str:
    stream = io.StringIO()
    print_audit(audit, Console(file=stream, width=width))
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_the_tables_fit_and_tell_all(width: int) -> None:
    text = printed(AUDIT, width)
    for said in ("Devices: gpu:0, cpu:0", "gpu:0 -> cpu:0: 100 B in 1 copy", "1 of unknown"):
        assert said in text
    assert "/home/me/train.py:7" in text.replace("\n", "")
    assert "1 operations are" not in text
    assert "1 operation is not on the requested device (kernels: evener's table)" in text
    assert "1 collective operation on 4 B (NcclAllReduce)" in text
    tables = [line for line in text.splitlines() if "→" not in line]
    assert max(map(len, tables)) <= width


def test_a_step_on_one_device_has_a_short_report() -> None:
    alone = dataclasses.replace(AUDIT, copies=(), collectives=(), fallbacks=())
    text = printed(alone, 80)
    assert "no copies between devices" in text
    assert "no findings" in text


def test_a_device_without_an_operation_is_the_finding() -> None:
    alone = dataclasses.replace(AUDIT, fallbacks=(), devices=("gpu:0", "gpu:1", "cpu:0", "cpu:9"))
    assert alone.idle_devices == ("gpu:1",)
    text = printed(alone, 120)
    assert "gpu:1: no operation of this step runs there" in text and "no findings" not in text


def test_long_lists_are_cut() -> None:
    many = dataclasses.replace(AUDIT, copies=AUDIT.copies * 20)
    assert "The largest 10 of 60 copies between devices" in printed(many, 80)
