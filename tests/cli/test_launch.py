from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from cli.commands import SOURCE, run
from evener.cli.conventions import WrongUsage
from evener.cli.run import read_layout
from evener.run.session import RunLayout

SCRIPT = """
    import os
    import signal
    import sys
    import time
    import keras
    import numpy as np
    import tensorflow as tf
    file, marks = sys.argv[1:]
    incarnation = os.environ.get("EVENER_JOB", "").partition('"incarnation": ')[2][:1]
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dropout(0.2),
                              layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")

    job = os.environ.get("EVENER_JOB", "")
    is_mortal = '"index": 1' in job and incarnation == "0"

    class Mark(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch
            # Of many epochs that wait for a replacement.
            time.sleep(0.2 if epoch > 3 else 0.0)

        def on_train_batch_begin(self, batch, logs=None):
            at = self.epoch, batch
            if is_mortal and marks in ("sys.exit", "os._exit") and at == (1, 5):
                with open("pid", "w") as pid:
                    pid.write(str(os.getpid()))
                sys.exit(0) if marks == "sys.exit" else os._exit(0)
            if not is_mortal and marks in ("sys.exit", "os._exit") and at == (2, 5):
                with open("pid") as pid:
                    other = f"/proc/{pid.read()}"
                while os.path.exists(other):
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
            if is_mortal and marks != "predict" and at == (1, 5):
                os.kill(os.getpid(), signal.SIGKILL)

        def on_predict_batch_begin(self, batch, logs=None):
            if is_mortal and marks == "predict" and batch == 12:
                os.kill(os.getpid(), signal.SIGKILL)

    mapped = []

    def note(number):
        mapped.append(number)
        return number

    def row(number):
        [noted] = tf.numpy_function(note, [number], [tf.int64], stateful=False)
        x = tf.random.stateless_uniform([7], tf.stack([noted, 0]))
        return x[:6], x[6:]

    data = tf.data.Dataset.range(83).shuffle(83, seed=2).map(row).batch(8).prefetch(2)
    tested = tf.data.Dataset.range(200, 220).map(row).batch(8)
    seen = tf.data.Dataset.range(300, 540).map(row).map(lambda x, y: x).batch(8)
    predicted = model.predict(seen, verbose=0, callbacks=[Mark()])
    in_predict = len(mapped)
    history = model.fit(data, epochs=3, verbose=2, callbacks=[Mark()], validation_data=tested)
    with open(f"mapped-{os.getpid()}", "w") as counts:
        counts.write(f"{in_predict} {len(mapped) - in_predict}")
    np.savez(file, *model.get_weights(), *history.history.values(), predicted)
    print("saved")
"""


TWO_WORKERS = ("launch", "--workers", "2", "--devices", "cpu:1", "--devices", "cpu:1")


def assert_equal(file: Path, alone: list[np.ndarray]) -> None:
    for found, expected in zip(np.load(file).values(), alone, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """Numbers of the program on one device."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT))
    done = run("run", "--devices", "cpu:1", "train.py", "one.npz", "-", folder=folder)
    assert done.returncode == 0, done.stderr
    return list(np.load(folder / "one.npz").values())


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


@pytest.mark.long
def test_a_worker_that_is_killed_costs_nothing(
    script: Path, tmp_path: Path, alone: list[np.ndarray]
) -> None:
    """Its prints appear once, and the numbers are those of one device."""
    words = ["launch", "--workers", "2", "--devices", "cpu:1", "--devices", "cpu:2"]
    logs = tmp_path / "logs"
    done = run(
        *words, "--logs", str(logs), str(script), str(tmp_path / "two.npz"), "-", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if "Epoch" in line] == [
        f"Epoch {epoch}/3" for epoch in (1, 2, 3)
    ]
    assert done.stdout.splitlines()[-1] == "saved"
    assert "worker 1 was ended by SIGKILL" in done.stderr
    assert sorted(path.name for path in logs.iterdir()) == ["worker-0.log", "worker-1.log"]
    assert_equal(tmp_path / "two.npz", alone)
    # While both workers lived, each has mapped its rows.
    counts = [path.read_text().split() for path in tmp_path.glob("mapped-*")]
    in_predict, in_fit = zip(*counts, strict=True)
    for of_processes, num_rows in ((in_predict, 240), (in_fit, 3 * (83 + 20))):
        assert 0 < max(map(int, of_processes)) < 0.95 * num_rows


@pytest.mark.long
def test_a_worker_that_is_killed_in_predict_costs_nothing(
    script: Path, tmp_path: Path, alone: list[np.ndarray]
) -> None:
    words = ["launch", "--workers", "3", *3 * ["--devices", "cpu:1"], "--shares", "5,2,1"]
    done = run(*words, str(script), str(tmp_path / "three.npz"), "predict", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "worker 1 was ended by SIGKILL" in done.stderr
    assert_equal(tmp_path / "three.npz", alone)


@pytest.mark.long
@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ("os._exit", "worker 1 ended with code 0 before the others came to the end"),
        ("sys.exit", "[worker 1] Why: its program ended while those of others went on."),
    ],
)
def test_a_worker_that_ends_with_0_in_mid_training_has_not_finished(
    ends: str, told: str, script: Path, tmp_path: Path
) -> None:
    """The other one goes on without it, and is killed: the job has not come to its end."""
    done = run(*TWO_WORKERS, "--no-replace", str(script), "out.npz", ends, folder=tmp_path)
    assert told in done.stderr
    assert "the job goes on without it (0 of 0 restarts used)" in done.stderr
    assert "worker 0 was ended by SIGKILL, and no worker is left" in done.stderr
    # One that has lost the others asks for another try.
    assert done.returncode == {"os._exit": 1, "sys.exit": 75}[ends]


def test_shares_are_those_of_the_devices_of_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(shares: str) -> RunLayout:
        return read_layout(devices="cpu:1", plan=None, shares=shares, verify=None)

    with pytest.raises(WrongUsage, match="PLAN-010"):
        read("5,2,1")
    job = {"index": 1, "count": 3, "coordinator": "127.0.0.1:7000", "host": "127.0.0.1"}
    monkeypatch.setenv("EVENER_JOB", json.dumps(job))
    assert read("5,2,1").shares == [5.0, 2.0, 1.0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("loop", "reason"),
    [
        ("model.fit(data, verbose=0)", "because of its pipeline"),
        ("for x, y in data: run(x, y)", "for a loop of the program may look at them"),
    ],
)
def test_waiting_for_data_is_told(loop: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "slow.py"
    lines = """
        import time
        import keras
        import numpy as np
        import tensorflow as tf

        def rows():
            # A batch takes longer than a step does on a busy machine.
            for number in range(8 * 110):
                time.sleep(0.015)
                yield np.full(6, number, "float32"), np.ones(1, "float32")

        signature = (tf.TensorSpec(6), tf.TensorSpec(1))
        data = tf.data.Dataset.from_generator(rows, output_signature=signature).batch(8)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        run = tf.function(lambda x, y: model.train_step((x, y)))
    """
    path.write_text(f"{textwrap.dedent(lines)}{loop}\n")
    done = run(*TWO_WORKERS, str(path), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    [told] = [line for line in done.stderr.splitlines() if "waited for its data" in line]
    assert f"every worker reads whole batches, {reason}" in told


@pytest.mark.long
def test_a_worker_that_lost_the_others_is_started_again(tmp_path: Path) -> None:
    """All of them at once: that is no error of the program."""
    path = tmp_path / "lost.py"
    lines = """
        import os
        from evener.errors import RunError
        if '"incarnation": 0' in os.environ["EVENER_JOB"]:
            raise RunError("RUN-095", "It is lost.", why="For a test.", fix="None.")
        print("done")
    """
    path.write_text(textwrap.dedent(lines))
    done = run(*TWO_WORKERS, "--logs", str(tmp_path / "logs"), str(path), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("lost the other workers; it is started again") == 2
    log = (tmp_path / "logs" / "worker-1.log").read_text()
    assert log.count("[RUN-095] It is lost.") == 1
    assert "done" in log


@pytest.mark.long
def test_a_replacement_that_never_starts_is_replaced(script: Path, tmp_path: Path) -> None:
    """It hangs in a module that Python reads before everything else."""
    hangs = """
        import os, time
        if '"incarnation": 1' in os.environ.get("EVENER_JOB", ""):
            time.sleep(600)
    """
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(hangs))
    environ = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}", "EVENER_START_SECONDS": "12"}
    script.write_text(script.read_text().replace("epochs=3", "epochs=110"))
    done = run(
        *TWO_WORKERS, str(script), str(tmp_path / "two.npz"), "-", folder=tmp_path, **environ
    )
    assert done.returncode == 0, done.stderr
    assert "it was silent for 12 seconds after its start; it is started again" in done.stderr


BEST = """
    import os, signal, sys
    import keras
    import numpy as np
    from evener.workers.process import group_of_process

    group = group_of_process()

    class Death(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2 and group and group.index == 1 and not group.incarnation:
                os.kill(os.getpid(), signal.SIGKILL)

        def on_epoch_end(self, epoch, logs=None):
            # All workers see in the same epoch that the replacement is there.
            is_there = not group or (len(group.view.members) == group.count and not group.is_late)
            if epoch > 2 and is_there:
                self.model.stop_training = True

    keras.utils.set_random_seed(1)
    # Its steps take longer than to take over their results, so that a replacement catches up.
    stack = [keras.layers.Dense(1000, "tanh"), keras.layers.Dense(1000), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((1000,)), *stack])
    model.compile(keras.optimizers.SGD(0.001), "mse")
    rng = np.random.default_rng(0)
    x, y = rng.random((2000, 1000), np.float32), rng.random((2000, 2), np.float32)
    # The first epoch is the best: a replacement has never had its weights.
    best = keras.callbacks.EarlyStopping("loss", 0, 10**6, 0, "max", restore_best_weights=True)
    model.fit(x, y, 1000, epochs=3000, verbose=0, callbacks=[best, Death()])
    np.savez(f"{sys.argv[1]}-{os.getpid()}.npz", *model.get_weights(), best.best_epoch)
"""


@pytest.mark.long
def test_a_replacement_has_the_best_weights_of_before(tmp_path: Path) -> None:
    path = tmp_path / "best.py"
    path.write_text(textwrap.dedent(BEST))
    # Of two, the one that is left has no exchange in which it would see that another one comes.
    words = ["launch", "--workers", "3", *["--devices", "cpu:1"] * 3]
    done = run(*words, str(path), str(tmp_path / "three"), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    ended = run("run", "--devices", "cpu:1", str(path), str(tmp_path / "one"), folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    [expected] = ([*np.load(file).values()] for file in tmp_path.glob("one-*"))
    first, *others = ([*np.load(file).values()] for file in tmp_path.glob("three-*"))
    assert int(expected[-1]) == 0 and len(others) == 2
    for mine, *theirs, alone in zip(first, *others, expected, strict=True):
        assert all(np.array_equal(mine, each) for each in theirs)
        np.testing.assert_allclose(mine, alone, rtol=0, atol=1e-6)


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "wait.py"
    path.write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    words = [sys.executable, "-m", "evener", "launch", "--workers", "1", "--devices", "cpu:1"]
    started = subprocess.Popen(
        [*words, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    try:
        assert started.stdout.readline() == "begun\n"
        started.send_signal(signal.SIGINT)
        assert started.wait(timeout=60) == 130
    finally:
        started.kill()
        started.communicate()
    deadline = time.monotonic() + 20
    while _runs(path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(path)


def _runs(path: Path) -> bool:
    for process in Path("/proc").iterdir():
        try:
            if str(path) in (process / "cmdline").read_text():
                return True
        except (OSError, UnicodeDecodeError):
            continue
    return False
