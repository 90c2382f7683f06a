"""Checkpoints across processes: kills, SIGTERM, readers without evener."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import evener

RunPython = Callable[..., subprocess.CompletedProcess[str]]

PROGRAM = """
import os, signal, sys, warnings
sys.path.insert(0, {tests!r})
warnings.filterwarnings("ignore")
import keras, numpy as np
from checkpoint.programs import KINDS, make_model, train
from evener.checkpoint import storage as contents

folder, at = sys.argv[1] if len(sys.argv) > 1 else {folder!r}, {at!r}

class Signal(keras.callbacks.Callback):
    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        Signal.steps += 1
        if at in (("SIGTERM", Signal.steps), ("SIGINT", Signal.steps)):
            os.kill(os.getpid(), signal.Signals[at[0]])

    def on_test_batch_end(self, batch, logs=None):
        if at == ("SIGTERM in validation", batch):
            os.kill(os.getpid(), signal.SIGTERM)

if at and at[0] == "SIGKILL while writing":
    write_state, count = contents.write_state, [0]

    def kill(*args):
        count[0] += 1
        if count[0] == at[1]:
            os.kill(os.getpid(), signal.SIGKILL)
        write_state(*args)

    contents.write_state = kill

x = np.ones((16, 4), "float32")
data = {{**KINDS["arrays"](), "validation_data": (x, x[:, :1]), "validation_batch_size": 4}}
weights, history = train(make_model(), folder, data, Signal(), every_steps={every})
print(Signal.steps, history)
print([float(np.abs(value).sum()) for value in weights])
"""
TESTS = str(Path(__file__).parents[1])


def program(folder: Path, at: tuple[str, int] | None = None, every: int | None = 2) -> str:
    return PROGRAM.format(tests=TESTS, folder=str(folder), at=at, every=every)


def results(done: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    line, weights = done.stdout.splitlines()[-2:]
    steps, _, history = line.partition(" ")
    return int(steps), history + weights


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, Path]:
    """Results of the program undisturbed, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "program.py").write_text(program(folder / "run"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(folder / "program.py")],
        env={**os.environ, "PYTHONPATH": str(Path(evener.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return *results(done), folder / "run"


@pytest.mark.long
def test_a_kill_while_writing_costs_the_steps_since_the_last_one(
    tmp_path: Path, run_python: RunPython, whole: tuple[int, str, Path]
) -> None:
    steps, expected, _ = whole
    killed = run_python(program(tmp_path / "killed", ("SIGKILL while writing", 8)), check=False)
    assert killed.returncode == -signal.SIGKILL
    remains = [path.name for path in (tmp_path / "killed").iterdir()]
    assert any(name.startswith(".tmp-") for name in remains)
    again, resumed = results(run_python(program(tmp_path / "killed")))
    # The last that was written is that of the end of the first epoch, at 13 steps.
    assert steps == 39 and again == 39 - 13
    assert resumed == expected
    assert [path.name for path in (tmp_path / "killed").glob(".*")] == [".lock"]


@pytest.mark.long
def test_a_signal_writes_one_and_ends_the_process(
    tmp_path: Path, run_python: RunPython, whole: tuple[int, str, Path]
) -> None:
    _, expected, _ = whole
    ends = (("SIGINT", 5), ("SIGTERM in validation", 1))
    for index, at in enumerate(ends):
        folder = tmp_path / str(index)
        ended = run_python(program(folder, at, every=None), check=False)
        # Python ends by SIGINT itself where nobody catches a KeyboardInterrupt.
        assert ended.returncode == (-2 if at[0] == "SIGINT" else 143), ended.stderr
        steps, resumed = results(run_python(program(folder, every=None)))
        assert steps == 39 - (13 if "validation" in at[0] else at[1]), at
        assert resumed == expected


READER = """
import json, sys
import keras, numpy as np, tensorflow as tf

sys.modules["evener"] = None
folder = {folder!r}
model = keras.Sequential(
    [
        keras.Input((4,)),
        keras.layers.Dense(8, "relu", name="hidden"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Dropout(0.3, name="drop"),
        keras.layers.Dense(1, name="out"),
    ]
)
model.load_weights(folder + "/model.weights.h5")
by_keras = model.get_weights()
for variable in model.variables:
    variable.assign(variable * 0)
model.compile(keras.optimizers.Adam(0.01), "mse")
model.optimizer.build(model.trainable_variables)
status = tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(folder + "/variables")
status.assert_existing_objects_matched().expect_partial()
for value, other in zip(model.get_weights(), by_keras, strict=True):
    np.testing.assert_array_equal(value, other)
assert int(model.optimizer.iterations) == 39
print("read", [float(np.abs(value).sum()) for value in by_keras])
"""


@pytest.mark.long
def test_keras_and_tensorflow_read_it_without_evener(whole: tuple[int, str, Path]) -> None:
    _, written, run = whole
    folder = run / "step-00000039"
    plain = subprocess.run(
        [sys.executable, "-c", READER.format(folder=str(folder))],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert plain.returncode == 0, plain.stderr
    weights = plain.stdout.strip().removeprefix("read ")
    assert written.endswith(weights) and len(json.loads(weights)) == 8


@pytest.mark.long
def test_the_last_checkpoint_is_finished_when_the_program_ends(
    tmp_path: Path, run_python: RunPython
) -> None:
    code = f"""
        import threading
        import tensorflow as tf
        import evener
        from evener.checkpoint import storage as contents

        main = threading.main_thread()
        write = contents.write

        def write_later(*args):
            main.join()
            write(*args)

        contents.write = write_later
        evener.Checkpoint({str(tmp_path / "run")!r}, weight=tf.Variable(1.0)).save(step=1)
        print("the program has ended")
    """
    assert "has ended" in run_python(code).stdout
    assert (tmp_path / "run" / "step-00000001" / "DONE").exists()
