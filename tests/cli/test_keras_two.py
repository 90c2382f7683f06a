"""Programs of Keras 2 (``tf_keras``), unchanged under `evener run`: all devices, equal results."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.forked import Comparison, Run, compare_with_plain_python

PROGRAM = Path(__file__).parents[1] / "programs" / "legacy_keras" / "keras_two.py"
WAYS = (
    *("fit", "averaged", "decorated step", "functional", "legacy optimizer", "loaded"),
    *("mirrored", "own train_step", "own variables", "subclassed"),
)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("way", WAYS)
def test_it_gives_the_results_of_one_device(way: str, run_forked: Run, tmp_path: Path) -> None:
    found = compare(way, run_forked, tmp_path)
    assert found.devices == {"CPU:0", "CPU:1"}, found
    assert "has nothing to do" not in found.evener.stderr
    assert "gathered" not in found.evener.stderr


@pytest.mark.long
def test_an_older_optimizer_updates_eagerly(run_forked: Run, tmp_path: Path) -> None:
    found = compare("eager step", run_forked, tmp_path)
    assert found.devices == {"CPU:0"}
    assert "calls tf_keras, whose layers and optimizers are not followed" in found.evener.stderr


def compare(way: str, run: Run, folder: Path) -> Comparison:
    script = folder / "train.py"
    text = PROGRAM.read_text(encoding="utf-8")
    script.write_text(text.replace("sys.argv[1:]", f"{way!r}, sys.argv[1]"), encoding="utf-8")
    return compare_with_plain_python(run, script, folder)
