"""Values as text and as HTML: what `print` and a notebook show."""

from __future__ import annotations

import dataclasses
import io
import re
import sys
from html import unescape
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text

from evener import Diagnosis, Finding, Plan
from evener.base.terminal import html_of, standard_error, standard_output
from evener.clusters import cluster_named, datasheet_profile, model_named
from evener.devices.inventories import Inventory, MachineDevice
from evener.doctor import Severity
from evener.partition.report import StepReport
from evener.planner import check_plan
from evener.report.comparison import Comparison, Difference
from unit.auditing.test_audit import AUDIT

DIAGNOSIS = Diagnosis(
    script="train.py",
    findings=(
        Finding(
            code="DOC-201",
            severity=Severity.ERROR,
            file="train.py",
            line=3,
            what="this is wrong.",
            why="it is.",
            fix="another.",
        ),
    ),
)
PLANNED = check_plan(
    Plan.data_parallel(["gpu:0", "gpu:1"]),
    datasheet_profile(model_named("resnet-50"), cluster_named("rtx3090-rtx3060")),
    32,
)
COMPARISON = Comparison(
    differences=(Difference(what="weights", value=0.0, where="-", num_compared=3),)
)
ODD = '<script>alert("&")</script>[bold]'
GPU = MachineDevice(
    name="gpu:0", kind="gpu", product="A card", use="compute", memory_total_bytes=2**34
)
VALUES = {
    "inventory": (Inventory(devices=(GPU,), tensorflow_version="2.21.0"), "gpu:0    A card"),
    "audit": (AUDIT, "gpu:0 -> cpu:0: 100 B in 1 copy"),
    "plan": (Plan.data_parallel(["cpu:0", "cpu:1"]), "Plan: data parallel, 2 devices"),
    "planned": (PLANNED, "Plan: data parallel, 2 devices"),
    "diagnosis": (DIAGNOSIS, "1 error in train.py"),
    "comparison": (COMPARISON, "weights"),
    "steps": (StepReport(gathered=(), num_operations=3), "3 operations of the parts"),
}
WITH_ODD_NAMES = {
    "diagnosis": dataclasses.replace(DIAGNOSIS, script=ODD),
    "inventory": Inventory(devices=(dataclasses.replace(GPU, product=ODD),)),
    "audit": dataclasses.replace(AUDIT, step=ODD),
    "plan": Plan.pipeline({"gpu:0": ODD}),
}


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


@pytest.mark.parametrize("name", VALUES)
def test_a_notebook_shows_the_table_that_print_shows(name: str) -> None:
    value, line = VALUES[name]
    html: str = value._repr_html_()
    assert line in " ".join(str(value).split("\n"))
    opening, _, rest = html.partition(">")
    assert opening.startswith("<pre ") and rest.endswith("</pre>")
    assert lines_of(unescape(rest.removesuffix("</pre>"))) == lines_of(str(value))


@pytest.mark.parametrize("name", WITH_ODD_NAMES)
def test_names_cannot_change_the_page(name: str) -> None:
    value: Any = WITH_ODD_NAMES[name]
    html: str = value._repr_html_()
    assert "<script" not in html
    assert html.count("<") == 2, "only the two tags of the fragment"
    # It may be folded in a column of the table.
    assert "&lt;script&gt;" in html


def test_the_terminal_and_the_environment_do_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [(str(value), value._repr_html_()) for value, _ in VALUES.values()]
    for name, setting in {"COLUMNS": "20", "FORCE_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, setting)
    assert [(str(value), value._repr_html_()) for value, _ in VALUES.values()] == before


def test_long_lines_are_not_wrapped() -> None:
    assert "x" * 300 in html_of("x" * 300)


def test_texts_hold_no_codes_for_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = "a\x1b]0;title\x07b\x9b2Jc\x7fd"
    monkeypatch.setenv("FORCE_COLOR", "1")
    for console in (standard_output(highlight=False), standard_error(highlight=False)):
        table = Table("name")
        table.add_row(Text(odd, style="red"))
        console.print(table, Text(odd), odd)
    for printed in capsys.readouterr():
        # Colours are rich's own.
        assert "\x1b[31m" in printed
        assert printed.count("a]0;titleb2Jcd") == 3
        assert not re.search(
            r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", re.sub(r"\x1b\[[\d;]*m", "", printed)
        )
    odd_plan = Plan.pipeline({"gpu:0": odd})
    assert "\x1b" not in f"{odd_plan}{odd_plan._repr_html_()}"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_drawings_on_a_stream_that_cannot_encode_them(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    standard_output().print("├─► 2 µs ☃")
    stream.seek(0)
    assert stream.read() == "+-> 2 us ?\n"
