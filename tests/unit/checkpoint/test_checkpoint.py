"""`evener.Checkpoint`: values come back, damage is found, older checkpoints stay whole."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.checkpoint import others, storage
from evener.errors import CheckpointError, EvenerWarning

pytestmark = pytest.mark.usefixtures("logical_cpus")


def trained_model(units: int = 3, *, optimizer: str = "adam") -> keras.Model:
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(units, name="hidden"), keras.layers.Dropout(0.5)]
    )
    model.compile(optimizer, "mse", metrics=["mae"])
    model.fit(np.ones((8, 4)), np.ones((8, units)), verbose=0)
    return model


def all_values(model: keras.Model) -> list[np.ndarray]:
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return [np.array(variable) for variable in variables]


def assert_equal(values: list[np.ndarray], others: list[np.ndarray]) -> None:
    for value, other in zip(values, others, strict=True):
        np.testing.assert_array_equal(value, other)


def saved(folder: Path | str, *steps: int, **given: Any) -> evener.Checkpoint:
    """Return a checkpoint whose steps are written; without other values, of one variable."""
    checkpoint = evener.Checkpoint(folder, **(given or {"weight": tf.Variable(1.0)}))
    for step in steps:
        checkpoint.save(step=step)
    checkpoint.wait()
    return checkpoint


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_all_that_was_saved_comes_back(tmp_path: Path) -> None:
    model, generator = trained_model(), tf.random.Generator.from_seed(3)
    checkpoint = evener.Checkpoint(tmp_path, model=model, generator=generator)
    values, state = all_values(model), np.array(generator.state)
    checkpoint.save(step=7, epoch=2, position={"line": 5})
    expected = random.random(), np.random.rand()
    checkpoint.wait()
    model.fit(np.ones((8, 4)), np.zeros((8, 3)), verbose=0)
    generator.normal([2])
    position = checkpoint.restore()
    assert position == evener.checkpoint.Position(step=7, epoch=2, position={"line": 5})
    assert_equal(values, all_values(model))
    np.testing.assert_array_equal(state, generator.state)
    assert (random.random(), np.random.rand()) == expected


def test_the_values_are_those_of_the_moment_of_save(tmp_path: Path) -> None:
    weight = tf.Variable([1.0, 2.0])
    checkpoint = evener.Checkpoint(tmp_path, weight=weight)
    # A step that is saved again replaces the first.
    for step, value in ((1, 1.0), (2, 2.0), (2, 3.0)):
        weight.assign([value, 0.0])
        checkpoint.save(step=step)
        weight.assign([9.0, 9.0])
    checkpoint.restore()
    np.testing.assert_array_equal(weight, [3.0, 0.0])
    assert entries(tmp_path) == [".lock", "step-00000001", "step-00000002"]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    checkpoint = evener.Checkpoint(tmp_path, keep=2, weight=tf.Variable(1.0))
    assert checkpoint.latest is None
    assert checkpoint.restore() is None
    for step in (1, 2, 3):
        checkpoint.save(step=step)
    checkpoint.wait()
    assert entries(tmp_path) == [".lock", "step-00000002", "step-00000003"]
    assert checkpoint.latest == str(tmp_path / "step-00000003")


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


FILES = ("state.json", "variables.index", "variables.data-00000-of-00001", "model.weights.h5")


@pytest.mark.parametrize(
    ("name", "damage"),
    [*itertools.product(FILES, (flip_a_bit, cut_in_half, Path.unlink)), ("DONE", Path.unlink)],
)
def test_a_damaged_checkpoint_is_skipped(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    model = keras.Sequential([keras.Input((100,)), keras.layers.Dense(1)])
    checkpoint = saved(tmp_path, 1, 2, model=model)
    folder = tmp_path / "step-00000002"
    assert entries(folder) == sorted([*FILES, "DONE"])
    damage(folder / name)
    checkpoint.keep = 1
    with pytest.warns(EvenerWarning, match="CKPT-006"):
        position = checkpoint.restore()
    assert position is not None
    assert position.step == 1
    # The damaged one does not take the place of a whole one.
    checkpoint.save(step=1)
    checkpoint.wait()
    assert checkpoint.latest == str(tmp_path / "step-00000001")


def test_a_run_does_not_begin_anew_where_all_are_damaged(tmp_path: Path) -> None:
    weight = tf.Variable(1.0)
    checkpoint = saved(tmp_path, 1, 2, weight=weight)
    weight.assign(2.0)
    (tmp_path / "step-00000001" / "DONE").unlink()
    flip_a_bit(tmp_path / "step-00000002" / "variables.index")
    with pytest.raises(CheckpointError, match=r"CKPT-015[\s\S]*index[\s\S]*marker") as caught:
        checkpoint.restore()
    assert str(tmp_path) in caught.value.what and float(weight) == 2.0


def test_a_checkpoint_that_was_about_to_be_replaced_is_used(tmp_path: Path) -> None:
    """The process was killed between the two renames."""
    weight = tf.Variable(1.0)
    saved(tmp_path, 1, weight=weight)
    (tmp_path / "step-00000001").rename(tmp_path / ".old-step-00000001-77")
    weight.assign(2.0)
    again = evener.Checkpoint(tmp_path, weight=weight)
    assert again.restore() == evener.checkpoint.Position(step=1) and float(weight) == 1.0
    again.save(step=2)
    again.wait()
    assert storage.whole_names(str(tmp_path)) == ["step-00000001", "step-00000002"]


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
file.write("process 7 of here (1)")
file.flush()
print(flush=True)
sys.stdin.read()
"""


def test_two_jobs_in_a_folder(tmp_path: Path) -> None:
    """The second one is told before it writes, and a dead one keeps nobody out."""
    weight = tf.Variable(1.0)
    words = [sys.executable, "-c", HOLDER, str(tmp_path / ".lock")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, **pipes) as other:
        assert other.stdout is not None and other.stdout.readline()
        second = evener.Checkpoint(tmp_path, weight=weight)
        assert second.restore() is None  # To read is no harm.
        fit: Any = evener.CheckpointCallback(tmp_path).run_fit
        runs = (lambda: second.save(step=1), second.__enter__, lambda: fit(None, [], None, {}))
        for begin in runs:
            with pytest.raises(CheckpointError, match=r"CKPT-016[\s\S]*process 7 of here"):
                begin()
        other.kill()
    second.save(step=1)
    second.wait()
    assert storage.whole_names(str(tmp_path)) == ["step-00000001"]


def test_workers_of_one_job_do_not_lock_each_other_out(
    tmp_path: Path, work_with: Callable[[Any], None]
) -> None:
    """The worker that has written before is frozen, perhaps."""
    work_with(worker(is_chief=True))
    with (tmp_path / ".lock").open("w") as frozen:
        fcntl.flock(frozen, fcntl.LOCK_EX)
        frozen.write(others.job())
        frozen.flush()
        saved(tmp_path, 1)
    assert storage.whole_names(str(tmp_path)) == ["step-00000001"]


@pytest.mark.parametrize(
    ("is_chief", "is_late"),
    # A replacement of the first worker has the view of before its death.
    [(False, False), (True, True)],
)
def test_the_chief_alone_writes(tmp_path: Path, is_chief: bool, is_late: bool) -> None:
    others.work_with(worker(is_chief=is_chief, is_late=is_late))
    try:
        saved(tmp_path, 1)
    finally:
        others.work_with(None)
    assert storage.whole_names(str(tmp_path)) == []


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_process_that_is_forked_does_not_hold_the_lock(tmp_path: Path) -> None:
    held = storage.lock(str(tmp_path), "one")
    assert held is not None and storage.lock(str(tmp_path), "one") is held
    begun, begins = os.pipe()
    child = os.fork()
    if not child:
        os.write(begins, b"1")
        signal.pause()
    try:
        os.read(begun, 1)
        del held
        with (tmp_path / ".lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_loop_is_left_at_the_end_of_the_step(tmp_path: Path, number: signal.Signals) -> None:
    weight = tf.Variable(0.0)
    before = signal.getsignal(number)
    error = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    with pytest.raises(error) as caught, evener.Checkpoint(tmp_path, weight=weight) as checkpoint:
        for step in range(1, 9):
            if step == 7:
                signal.raise_signal(number)
            weight.assign_add(1.0)
            checkpoint.save(step=step, every=5)
    assert number == signal.SIGINT or caught.value.code == 143
    assert storage.whole_names(str(tmp_path)) == ["step-00000005", "step-00000007"]
    assert checkpoint.restore() == evener.checkpoint.Position(step=7) and float(weight) == 7.0
    assert signal.getsignal(number) is before


def test_a_second_signal_acts_at_once(tmp_path: Path) -> None:
    checkpoint = evener.Checkpoint(tmp_path, weight=tf.Variable(0.0))
    # The first one acts at the end of the block: there is no end of a step before.
    with pytest.raises(KeyboardInterrupt), checkpoint:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt) as at_once:
            signal.raise_signal(signal.SIGINT)
    assert at_once.type is KeyboardInterrupt
    assert not storage.whole_names(str(tmp_path))


def test_the_handler_of_the_program_is_called(tmp_path: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with evener.Checkpoint(tmp_path, weight=tf.Variable(0.0)) as checkpoint:
            for step in (1, 2, 3, 4):
                signal.raise_signal(signal.SIGTERM)
                checkpoint.save(step=step, every=100)
        assert seen == [signal.SIGTERM] * 4
        assert len(storage.whole_names(str(tmp_path))) == checkpoint.keep
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_object_store_gets_the_marker_last(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = tf.Variable(1.0)
    checkpoint = saved("ram://marker/run", 1, model=trained_model(), weight=weight)
    assert checkpoint.latest == "ram://marker/run/step-00000001"
    monkeypatch.setattr(storage, "write_state", fail_as_a_full_disk)
    checkpoint.save(step=2)
    with pytest.raises(CheckpointError, match="CKPT-004"):
        checkpoint.wait()
    weight.assign(2.0)
    assert checkpoint.restore() == evener.checkpoint.Position(step=1) and float(weight) == 1.0


def fail_as_a_full_disk(*args: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_leaves_the_older_ones_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = saved(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_state", fail_as_a_full_disk)
        checkpoint.save(step=2)
        with pytest.raises(CheckpointError, match="CKPT-004") as caught:
            checkpoint.save(step=3)
    assert str(tmp_path) in caught.value.what
    assert "No space left" in caught.value.why
    assert entries(tmp_path) == [".lock", "step-00000001"]
    checkpoint.save(step=4)
    checkpoint.wait()
    assert checkpoint.latest == str(tmp_path / "step-00000004")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"CKPT-004.*run"):
        saved(tmp_path / "file" / "run", 1)


def test_a_checkpoint_of_another_shape_changes_nothing(tmp_path: Path) -> None:
    saved(tmp_path, 1, model=trained_model(3))
    keras.utils.clear_session(free_memory=False)
    other = trained_model(5)
    before = all_values(other)
    with pytest.raises(CheckpointError, match=r"CKPT-003.*hidden/kernel") as caught:
        evener.Checkpoint(tmp_path, model=other).restore()
    assert "shape [4, 5]" in caught.value.what and "shape [4, 3]" in caught.value.what
    assert_equal(before, all_values(other))


def test_a_checkpoint_of_another_model_names_the_variables(tmp_path: Path) -> None:
    saved(tmp_path, 1, kernel=tf.Variable(1.0, name="kernel"))
    other = evener.Checkpoint(tmp_path, kernels=tf.Variable(1.0, name="kernel"))
    with pytest.raises(CheckpointError, match="CKPT-002") as caught:
        other.restore()
    assert "Did you mean 'kernel/kernel:0'?" in caught.value.what
    assert "kernels/kernel:0 float32[]" in caught.value.why


def test_layers_with_other_numbers_are_the_same(tmp_path: Path) -> None:
    first, second = (
        keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), keras.layers.Dense(2)])
        for _ in range(2)
    )
    assert first.variables[0].path != second.variables[0].path
    saved(tmp_path, 1, model=first)
    evener.Checkpoint(tmp_path, model=second).restore()
    assert_equal(first.get_weights(), second.get_weights())


def test_a_newer_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(storage, "FORMAT", 3)
        checkpoint = saved(tmp_path, 1)
    with pytest.raises(CheckpointError, match="CKPT-007"):
        checkpoint.restore()


def test_wrong_input_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="CKPT-001"):
        evener.Checkpoint(tmp_path, keep=0)
    for wrong in ({"step": -1}, {"step": 1, "epoch": 0.5}, {"step": 1, "every": 0}):
        with pytest.raises(CheckpointError, match="CKPT-011"):
            evener.Checkpoint(tmp_path, weight=tf.Variable(1.0)).save(**wrong)
    with pytest.raises(CheckpointError, match="CKPT-013"):
        evener.Checkpoint(tmp_path).save(step=1)
    with pytest.raises(CheckpointError, match="CKPT-005"):
        evener.Checkpoint(tmp_path, model=keras.Sequential([keras.layers.Dense(1)])).save(step=1)


def test_the_state_is_json(tmp_path: Path) -> None:
    saved(tmp_path, 1, model=trained_model())
    folder = tmp_path / "step-00000001"
    state = json.loads((folder / "state.json").read_text())["state"]
    kernel = next(v for v in state["variables"] if v["path"].endswith("hidden/kernel"))
    assert (kernel["shape"], kernel["dtype"], len(kernel["sha256"])) == ([4, 3], "float32", 64)
    assert {"versions", "position", "random", "plan", "shares"} <= state.keys()
    assert not [path for path in folder.iterdir() if path.suffix in (".pkl", ".pickle")]


def worker(*, is_chief: bool, is_late: bool = False, begun: str | None = None) -> Any:
    """Return a worker beside others, which may be told what they have begun with."""

    def agree(name: str, value: Callable[[], Any]) -> Any:
        if begun is not None:
            return {"value": begun}
        return value() if is_chief and not is_late else None

    return SimpleNamespace(
        is_chief=is_chief, is_late=is_late, agree=agree, stops=lambda *, is_requested: is_requested
    )


@pytest.fixture
def work_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    def set_workers(workers: Any) -> None:
        monkeypatch.setattr(others, "_workers", workers)

    return set_workers


def test_what_workers_have_begun_with_is_kept_for_replacements(
    tmp_path: Path, work_with: Callable[[Any], None]
) -> None:
    weight = tf.Variable(1.0)
    saved(tmp_path, 10, weight=weight, keep=1)
    work_with(worker(is_chief=True))
    chief = evener.Checkpoint(tmp_path, weight=weight, keep=1)
    assert chief.restore() is not None
    for step in (20, 30, 40):
        weight.assign(float(step))
        chief.save(step=step)
        chief.wait()
    assert len(storage.whole_names(str(tmp_path))) == 2
    work_with(worker(is_chief=False, begun=storage.name_of(10)))
    loaded = evener.Checkpoint(tmp_path, weight=weight).load()
    assert loaded is not None and loaded.state["position"]["step"] == 10


def test_a_worker_that_cannot_read_what_the_others_begin_with_says_so(
    tmp_path: Path, work_with: Callable[[Any], None]
) -> None:
    work_with(worker(is_chief=False, begun=storage.name_of(10)))
    with pytest.raises(CheckpointError, match=storage.name_of(10)) as caught:
        evener.Checkpoint(tmp_path, weight=tf.Variable(1.0)).load()
    assert caught.value.code == "CKPT-014"
