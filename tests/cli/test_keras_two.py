"""Programs of Keras 2 (``tf_keras``), unchanged under `evener run`: all devices, equal results."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.forked import Run, compare_with_plain_python

PROGRAM = Path(__file__).parents[1] / "programs" / "legacy_keras" / "keras_two.py"
WAYS = (
    *("fit", "averaged", "decorated step", "functional", "legacy optimizer", "loaded"),
    *("mirrored", "own train_step", "subclassed"),
)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("way", WAYS)
def test_it_gives_the_results_of_one_device(way: str, run_forked: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = PROGRAM.read_text(encoding="utf-8")
    script.write_text(text.replace("sys.argv[1:]", f"{way!r}, sys.argv[1]"), encoding="utf-8")
    found = compare_with_plain_python(run_forked, script, tmp_path)
    assert found.devices == {"CPU:0", "CPU:1"}, found
    assert "has nothing to do" not in found.evener.stderr
    assert "gathered" not in found.evener.stderr
