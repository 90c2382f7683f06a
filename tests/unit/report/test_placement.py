from __future__ import annotations

import dataclasses
import io
import xml.etree.ElementTree as ET

import pytest
from rich.console import Console

from evener.placement import Audit
from evener.report.placement import print_audit
from evener.report.traffic import draw
from unit.placement.test_record import AUDIT


def printed(audit: Audit, width: int) -> str:
    stream = io.StringIO()
    print_audit(audit, Console(file=stream, width=width))
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_the_tables_fit_and_tell_all(width: int) -> None:
    text = printed(AUDIT, width)
    for said in ("Devices here: gpu:0, cpu:0", "gpu:0 -> cpu:0: 100 B in 1 copy", "1 of unknown"):
        assert said in text
    assert "/home/me/train.py:7" in text.replace("\n", "")
    assert "1 operation is not where they should be" not in text
    assert "1 operation is not where it should be (kernels: evener's table)" in text
    assert "1 collective operation on 4 B (NcclAllReduce)" in text
    tables = [line for line in text.splitlines() if "→" not in line]
    assert max(map(len, tables)) <= width


def test_a_step_on_one_device_is_told_of_briefly() -> None:
    alone = dataclasses.replace(AUDIT, copies=(), collectives=(), fallbacks=())
    text = printed(alone, 80)
    assert "nothing moves between devices" in text
    assert "no findings" in text


def test_long_lists_are_cut() -> None:
    many = dataclasses.replace(AUDIT, copies=AUDIT.copies * 20)
    assert "The largest 10 of 60 copies between devices" in printed(many, 80)


def test_the_picture_has_a_box_per_device_and_an_arrow_per_way() -> None:
    picture = ET.fromstring(draw(AUDIT, ".svg"))
    name = "{http://www.w3.org/2000/svg}"
    texts = [text.text for text in picture.iter(f"{name}text")]
    assert {"gpu:0", "cpu:0", "100 B", "12 B", "1 copy", "2 copies, 1 unknown"} <= set(texts)
    assert len(list(picture.iter(f"{name}path"))) == 2
    width = float(picture.attrib["width"])
    for box in picture.iter(f"{name}rect"):
        if box.attrib["width"] != "100%":
            assert 0 <= float(box.attrib["x"]) <= width - float(box.attrib["width"])


def test_names_are_escaped_in_pictures() -> None:
    odd = dataclasses.replace(AUDIT, step='<b> & "step"')
    assert "<b>" not in draw(odd, ".svg")
    assert ET.fromstring(draw(odd, ".svg"))[0].text == '<b> & "step"'
    assert draw(odd, ".dot").startswith("digraph ")
    unwritable = dataclasses.replace(AUDIT, step="a\x1bb")
    assert ET.fromstring(draw(unwritable, ".svg"))[0].text == "a?b"


def test_graphviz_gets_every_way() -> None:
    text = draw(AUDIT, ".dot")
    assert '"gpu:0" -> "cpu:0" [label="100 B\\n1 copy"' in text
    assert text.count("->") == 2 and text.count("[label=") == 4
    assert text.count("{") == text.count("}") == 1
