"""An audit as tables for the terminal."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from evener.auditing import Audit, print_audit
from unit.auditing.test_audit_result import AUDIT


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
