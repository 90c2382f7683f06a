"""For how many GPUs a program is judged, where the machine has others or none."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from evener.doctor import Surroundings, diagnose, examine
from evener.errors import RunError
from evener.report.findings import print_diagnosis
from unit.doctor.programs import surroundings_of

FIT = (
    "import keras\nm = keras.Sequential([keras.layers.Dense(1)])\n"
    "m.compile('sgd', 'mse', steps_per_execution=8)\n"
    "m.fit(x, y)\n"
)
NAMES_FOUR = (
    "import tensorflow as tf\ns = tf.distribute.MirroredStrategy(['gpu:0', 'gpu:3'])\n"
    "with s.scope():\n    pass\n"
)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(FIT, encoding="utf-8")
    return path


def without_gpus(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str] | None = None
) -> None:
    around = Surroundings(environment=environment or {})
    monkeypatch.setattr(sys.modules["evener.doctor.diagnose"], "surroundings_here", lambda: around)


@pytest.mark.parametrize(
    ("there", "wanted", "judged", "is_assumed"),
    [(0, None, 2, True), (0, 0, 0, False), (0, 4, 4, False), (1, None, 1, False), (3, 2, 2, False)],
)
def test_the_number_is_what_was_said_else_what_is_there_else_two(
    there: int, wanted: int | None, judged: int, is_assumed: bool
) -> None:
    around = surroundings_of("", num_gpus=there).judged_for(wanted)
    assert (len(around.gpus), around.is_assumed) == (judged, is_assumed)
    assert len(around.machine.gpus) == there


def test_without_gpus_a_program_without_strategy_is_found(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_gpus(monkeypatch)
    found = diagnose(script)
    assert [finding.code for finding in found.findings] == ["DOC-201"]
    assert "assumed: a machine with 2 GPUs" in found.findings[0].evidence
    assert (found.num_gpus, found.is_assumed) == (2, True)
    assert found.to_dict()["num_gpus"] == 2 and found.to_dict()["num_gpus_assumed"] is True
    for number in (0, 1):
        alone = diagnose(script, num_gpus=number)
        assert (alone.findings, alone.num_gpus, alone.is_assumed) == ((), number, False)


def test_what_hides_the_gpus_here_says_nothing_of_another_machine(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_gpus(monkeypatch, {"CUDA_VISIBLE_DEVICES": "-1"})
    assert [finding.code for finding in diagnose(script).findings] == ["DOC-201"]
    here = surroundings_of("# environment: CUDA_VISIBLE_DEVICES=-1", num_gpus=2)
    assert [finding.code for finding in examine(script, here.judged_for(2)).findings] == ["DOC-101"]


def test_devices_that_an_assumed_machine_lacks_are_not_told(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(NAMES_FOUR, encoding="utf-8")
    here = surroundings_of("", num_gpus=0)
    assert "DOC-107" not in {
        finding.code for finding in examine(path, here.judged_for(None)).findings
    }
    assert "DOC-107" in {finding.code for finding in examine(path, here.judged_for(2)).findings}
    assert "DOC-107" not in {finding.code for finding in examine(path, here.judged_for(4)).findings}


def test_packages_are_those_of_this_machine(script: Path) -> None:
    here = surroundings_of("# package: tensorflow-cpu 2.21.0", num_gpus=0).judged_for(2)
    assert "DOC-102" not in {finding.code for finding in examine(script, here).findings}


def test_the_output_says_what_was_assumed(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_gpus(monkeypatch)
    for number, lines in ((None, 1), (3, 0)):
        out = io.StringIO()
        print_diagnosis(diagnose(script, num_gpus=number), Console(file=out, width=100))
        told = f"Assumed a machine with {number or 2} GPUs; --gpus N assumes another number.\n"
        assert out.getvalue().count(told) == lines


def test_fewer_than_no_gpus_are_refused(script: Path) -> None:
    with pytest.raises(RunError, match="RUN-013"):
        diagnose(script, num_gpus=-1)
