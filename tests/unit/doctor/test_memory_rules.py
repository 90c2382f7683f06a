"""Memory of a step against that of the GPUs: what is said of it, and what is proposed."""

from __future__ import annotations

from pathlib import Path

import pytest

from evener.analysis import read_program
from evener.clusters import model_named
from evener.devices.machine import NvmlGpu, NvmlMachine
from evener.doctor import Case, Surroundings, all_rules, diagnose
from evener.doctor.rule import Violation
from evener.doctor.step_memory import StepMemory, step_memory
from unit.doctor.table import write

FIT = (
    "m = keras.applications.ResNet50()\nm.compile('sgd', 'mse')\nm.fit(x, y, batch_size={batch})\n"
)
MIRRORED = (
    "s = tf.distribute.MirroredStrategy()\nwith s.scope():\n    m = keras.applications.ResNet50()\n"
    "    m.compile('sgd', 'mse')\nm.fit(x, y, batch_size={batch})\n"
)
GIB = 2**30


def found(program: str, folder: Path, *, batch: int, gib: float, num_gpus: int) -> list[Violation]:
    path = write(program.format(batch=batch), folder)
    machine = NvmlMachine(
        gpus=tuple(NvmlGpu(index=i, memory_total_bytes=round(gib * GIB)) for i in range(num_gpus))
    )
    case = Case(
        program=read_program(path),
        surroundings=Surroundings(machine=machine),
        memory=StepMemory(model=model_named("resnet-50").costs, batch_size=batch),
    )
    rule = next(rule for rule in all_rules() if rule.code == "DOC-605")
    return list(rule.check(case))


def test_a_batch_that_does_not_fit_is_told_with_what_does(tmp_path: Path) -> None:
    violation = found(FIT, tmp_path, batch=128, gib=6, num_gpus=2)[0]
    assert violation.what.startswith("a batch of 128 needs ")
    assert "of 5.0 GiB" in violation.what
    assert "a batch of " in violation.fix
    assert "2 GPUs under a strategy, with 64 samples each" in violation.fix
    assert violation.location.line == 6


def test_mixed_precision_is_proposed_once(tmp_path: Path) -> None:
    assert "mixed_float16" in found(FIT, tmp_path, batch=128, gib=6, num_gpus=1)[0].fix
    mixed = "keras.mixed_precision.set_global_policy('mixed_float16')\n" + FIT
    assert "set_global" not in found(mixed, tmp_path, batch=128, gib=6, num_gpus=1)[0].fix


@pytest.mark.parametrize(("batch", "gib"), [(32, 6), (128, 12)])
def test_a_batch_that_fits_is_no_finding(batch: int, gib: float, tmp_path: Path) -> None:
    assert found(FIT, tmp_path, batch=batch, gib=gib, num_gpus=1) == []


def test_replicas_divide_the_batch(tmp_path: Path) -> None:
    assert found(FIT, tmp_path, batch=128, gib=6, num_gpus=2)
    assert not found(MIRRORED, tmp_path, batch=128, gib=6, num_gpus=2)
    violation = found(MIRRORED, tmp_path, batch=512, gib=6, num_gpus=2)[0]
    assert "on each of 2 GPUs (256 samples)" in violation.what


def test_not_one_sample(tmp_path: Path) -> None:
    fix = found(FIT, tmp_path, batch=8, gib=1.1, num_gpus=1)[0].fix
    assert "not even one sample fits" in fix
    assert "fits;" not in fix


def test_memory_that_is_assumed() -> None:
    around = Surroundings(
        machine=NvmlMachine(gpus=(NvmlGpu(index=0, memory_total_bytes=24 * GIB),))
    )
    assert [g.memory_total_bytes for g in around.judged_for(None, GIB).gpus] == [GIB]
    assert [g.memory_total_bytes for g in around.judged_for(2, GIB).gpus] == [GIB, GIB]
    assert [g.memory_total_bytes for g in around.judged_for(2).gpus] == [24 * GIB, None]


TRAIN = """import keras
import numpy as np
x = np.zeros((64, 64, 64, 3), "float32")
m = keras.Sequential([keras.Input((64, 64, 3)), keras.layers.Conv2D(64, 3), keras.layers.Flatten(),
                      keras.layers.Dense(1)])
m.compile("adam", "mse")
m.fit(x, x[:, 0, 0, :1], batch_size={batch}, verbose=0)
"""


@pytest.mark.long
def test_a_run_is_compared_with_the_memory_of_a_card(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    for batch, is_too_large in ((64, True), (2, False)):
        path.write_text(TRAIN.format(batch=batch), encoding="utf-8")
        diagnosis = diagnose(
            path, run=True, num_steps=2, num_gpus=1, gpu_memory_bytes=round(1.05 * GIB)
        )
        assert diagnosis.not_estimated == ""
        codes = [finding.code for finding in diagnosis.findings]
        assert ("DOC-605" in codes) is is_too_large


def test_what_cannot_be_traced_has_a_reason(tmp_path: Path) -> None:
    reason = step_memory(str(tmp_path / "gone.py"), (), as_module=False, time_limit_seconds=1.0)
    assert isinstance(reason, str)
    assert "RUN-001" in reason
