from __future__ import annotations

import pytest

from evener.run.script import Notes, UserLine


def test_a_note_is_printed_once_for_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    notes = Notes()
    for line in (3, 3, 4):
        notes.add("replaced", UserLine(path="/elsewhere/train.py", number=line))
    notes.add("about no line")
    said = [
        "evener: /elsewhere/train.py:3: replaced",
        "evener: /elsewhere/train.py:4: replaced",
        "evener: about no line",
    ]
    assert capsys.readouterr() == ("", "\n".join(said) + "\n")
    assert list(map(str, notes.printed)) == said
