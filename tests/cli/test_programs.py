"""Programs, unchanged under `evener run`: all devices, the results of plain Python.

Typical ones, scripts that were written for one device, and those of Keras 2 (``tf_keras``).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.forked import Comparison, Run, compare_with_plain_python

PROGRAMS = Path(__file__).parents[1] / "programs"
TYPICAL = sorted(path.stem for path in (PROGRAMS / "typical").glob("*.py"))
ONE_DEVICE = sorted(path.stem for path in (PROGRAMS / "one_device").glob("*.py"))
OF_KERAS_TWO = (
    *("fit", "averaged", "decorated step", "functional", "legacy optimizer", "loaded"),
    *("mirrored", "own train_step", "own variables", "subclassed"),
)


def test_there_are_25() -> None:
    assert (len(TYPICAL), len(ONE_DEVICE)) == (15, 10)


@pytest.mark.sampled(30)
@pytest.mark.parametrize("name", TYPICAL)
def test_a_typical_program(name: str, run_forked: Run, tmp_path: Path) -> None:
    found = compare_with_plain_python(run_forked, PROGRAMS / f"typical/{name}.py", tmp_path)
    assert found.evener.stdout.startswith(found.plain.stdout)
    check_that_all_devices_compute(found)


@pytest.mark.long
@pytest.mark.parametrize("name", ONE_DEVICE)
def test_a_script_for_one_device(name: str, run_forked: Run, tmp_path: Path) -> None:
    script = PROGRAMS / f"one_device/{name}.py"
    check_that_all_devices_compute(compare_with_plain_python(run_forked, script, tmp_path))


@pytest.mark.sampled(20)
@pytest.mark.parametrize("way", OF_KERAS_TWO)
def test_a_program_of_keras_two(way: str, run_forked: Run, tmp_path: Path) -> None:
    found = compare_of_keras_two(way, run_forked, tmp_path)
    check_that_all_devices_compute(found)
    assert "gathered" not in found.evener.stderr


@pytest.mark.long
def test_an_older_optimizer_updates_eagerly(run_forked: Run, tmp_path: Path) -> None:
    found = compare_of_keras_two("eager step", run_forked, tmp_path)
    assert found.devices == {"CPU:0"}
    assert "calls tf_keras, whose layers and optimizers are not followed" in found.evener.stderr


def check_that_all_devices_compute(found: Comparison) -> None:
    assert found.devices == {"CPU:0", "CPU:1"}, found
    assert "has nothing to do" not in found.evener.stderr


def compare_of_keras_two(way: str, run: Run, folder: Path) -> Comparison:
    script = folder / "train.py"
    text = (PROGRAMS / "legacy_keras/keras_two.py").read_text(encoding="utf-8")
    script.write_text(text.replace("sys.argv[1:]", f"{way!r}, sys.argv[1]"), encoding="utf-8")
    return compare_with_plain_python(run, script, folder)
