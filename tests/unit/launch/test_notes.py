from __future__ import annotations

import pytest

from evener.launch.notes import Notes
from evener.launch.place import Place


def test_each_thing_is_said_once_for_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    notes = Notes()
    for line in (3, 3, 4):
        notes.tell("replaced", Place(path="/elsewhere/train.py", line=line))
    notes.tell("about no line")
    said = [
        "evener: /elsewhere/train.py:3: replaced",
        "evener: /elsewhere/train.py:4: replaced",
        "evener: about no line",
    ]
    assert capsys.readouterr() == ("", "\n".join(said) + "\n")
    assert list(map(str, notes.told)) == said
