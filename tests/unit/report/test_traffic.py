"""The picture of an audit, for browsers and for Graphviz."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET

from evener.report.traffic import draw
from unit.auditing.test_audit_result import AUDIT


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
    assert draw(odd, ".dot").startswith('digraph "<b> & \\"step\\"" {\n')
    unwritable = dataclasses.replace(AUDIT, step="a\x1bb")
    assert ET.fromstring(draw(unwritable, ".svg"))[0].text == "a?b"


def test_graphviz_gets_every_way() -> None:
    text = draw(AUDIT, ".dot")
    assert '"gpu:0" -> "cpu:0" [label="100 B\\n1 copy"' in text
    assert text.count("->") == 2 and text.count("[label=") == 4
    assert text.count("{") == text.count("}") == 1
