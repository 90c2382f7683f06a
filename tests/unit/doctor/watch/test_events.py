"""Events of the watcher: what is told is listened to, by methods that are found by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from evener.doctor.watch import recorder


def test_each_listener_is_named_after_an_event_that_is_told() -> None:
    folder = Path(recorder.__file__).parent
    text = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    events = set(get_args(recorder.Event))
    assert set(re.findall(r"def on_(\w+)\(self", text)) == events
    assert set(re.findall(r"\.tell[(,] ?\"(\w+)\"", text)) == events
