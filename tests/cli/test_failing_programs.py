"""The same error, text and lines under ``evener run`` as on one device.

The programs of ``steps.py`` were there when errors were given their lines; those of
``more_steps.py`` were written afterwards.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cli.commands import run

FAILING = Path(__file__).parents[1] / "programs" / "failing"
# Texts with the values or the sizes of the rows that one device computes.
OF_ITS_ROWS = {
    "fails_assert_in_layer",
    "fails_matmul_of_unknown_width",
    "fails_unknown_target_shape",
}


def ends_of(programs: str, folder: Path, *command: str) -> dict[str, Any]:
    results = folder / f"{len(command)}.json"
    words = (str(FAILING / "cases.py"), f"{FAILING / programs}.py", str(results))
    done = run(*words, program=command, folder=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(results.read_text(encoding="utf-8"))


def without_frames(name: str, text: str) -> str:
    text = re.sub(r'\n\s*File "[^"]*", line \d+, in [^\n]*(\n    [^\n]*)?', "", text)
    text = re.sub(r"__inference_\w+", "function", text)
    if name in OF_ITS_ROWS:
        text = re.sub(r"-?\d+(\.\d*)?", "number", text)
    return " ".join(text.split())


@pytest.mark.long
@pytest.mark.parametrize("programs", ["steps", "more_steps"])
def test_errors_are_those_of_one_device(programs: str, tmp_path: Path) -> None:
    plain = ends_of(programs, tmp_path)
    ours = ends_of(programs, tmp_path, "-m", "evener", "run", "--devices", "cpu:2")
    assert len(plain) >= 24 and all(end["type"] for end in plain.values())
    for name, end in ours.items():
        if end["text"].startswith("in user code"):
            # AutoGraph's own list of frames.
            end["defined"] = [frame for frame in end["defined"] if "/src/evener/" not in frame[0]]
        end["text"] = without_frames(name, end["text"])
        plain[name]["text"] = without_frames(name, plain[name]["text"])
    assert ours == plain
