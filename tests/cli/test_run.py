"""Scripts on stand-ins, as a person would run them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import evener
from cli.commands import environment
from cli.forked import Done
from cli.forked import Run as RunForked
from evener.cli import app

Run = Callable[..., subprocess.CompletedProcess[str]]

FIT = """
    import sys
    import keras
    import numpy as np
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(100, 8)).astype("float32")
    model.fit(x, np.sin(x[:, :1]), batch_size=32, epochs=2, verbose=0)
    np.save(sys.argv[1], np.concatenate([w.ravel() for w in model.get_weights()]))
    print(sorted({v.value.device[-5:] for v in model.variables}))
"""

LOOP = """
    import sys
    import keras
    import numpy as np
    import tensorflow as tf
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    loss_of = keras.losses.MeanSquaredError()
    optimizer = keras.optimizers.Adam(0.01)
    x = np.random.default_rng(0).normal(size=(100, 8)).astype("float32")
    batches = tf.data.Dataset.from_tensor_slices((x, np.sin(x[:, :1]))).batch(32)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    for epoch in range(2):
        for x, y in batches:
            loss = train_step(x, y)
    np.save(sys.argv[1], np.concatenate([w.ravel() for w in model.get_weights()]))
    print(sorted({v.value.device[-5:] for v in model.variables}))
"""

EAGER = LOOP.replace("@tf.function", "")
MADE = "evener: train.py:8: this model trains on cpu:0, cpu:1"
# Another share than even, so that what a replica scales wrong is seen.
UNEVEN = ["--devices", "cpu:2", "--shares", "3,1"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return what runs a script in a folder of its own: ``run(source, *args, options=[...])``."""

    def run(
        source: str, *args: str, options: list[str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "train.py").write_text(textwrap.dedent(source), encoding="utf-8")
        chosen = ["--devices", "cpu:2"] if options is None else options
        return subprocess.run(
            [sys.executable, "-m", "evener", "run", *chosen, "train.py", *args],
            cwd=tmp_path,
            # As a person would: with no log level set.
            env=environment(tmp_path, TF_CPP_MIN_LOG_LEVEL=None),
            capture_output=True,
            text=True,
            timeout=200,
            # A background job ignores Ctrl-C, and so would every process that it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    return run


@pytest.fixture
def run_in_fork(run_forked: RunForked, tmp_path: Path) -> Callable[..., Done]:
    """Return what does the same in a fork that has TensorFlow; without options, without evener."""

    def run(source: str, *args: str, options: list[str] | None = None) -> Done:
        (tmp_path / "train.py").write_text(textwrap.dedent(source), encoding="utf-8")
        if options is None:
            return run_forked("one device", "train.py", *args)
        return run_forked("evener", "run", *options, "train.py", *args)

    return run


@pytest.fixture
def compared(run_in_fork: Callable[..., Done], tmp_path: Path) -> Callable[..., Done]:
    """Return what trains a script on one device and with options, and demands equal weights."""

    def compared(
        source: str, *options: str, atol: float = 1e-6, run: Callable[..., Any] = run_in_fork
    ) -> Done:
        weights = []
        for chosen in (None, [*options]):
            done = (run_in_fork if chosen is None else run)(source, "weights.npy", options=chosen)
            assert done.returncode == 0, done.stderr
            weights.append(np.load(tmp_path / "weights.npy"))
        np.testing.assert_allclose(*weights, atol=atol)
        return done

    return compared


def test_a_script_that_fits_trains_on_all_devices(run: Run, compared: Callable[..., Done]) -> None:
    done = compared(FIT, *UNEVEN, atol=1e-5, run=run)
    assert done.stdout == "['CPU:0', 'CPU:1']\n"
    assert done.stderr == ("evener: train.py:7: this model trains on cpu:0, cpu:1\n")


def test_a_traced_step_runs_on_all_devices(compared: Callable[..., Done]) -> None:
    done = compared(LOOP, *UNEVEN, "--verify", atol=1e-5)
    assert done.stdout == "['CPU:0', 'CPU:1']\n"
    *notes, verified = done.stderr.splitlines()
    assert notes == [MADE, "evener: train.py:24: train_step runs on cpu:0, cpu:1"]
    assert verified.startswith("evener: Verified against one device: results differ by at most")


@pytest.mark.parametrize(
    ("devices", "why"),
    [("cpu:2", "No training step of the script was divided"), ("cpu:1", "one device, cpu:0")],
)
def test_a_verification_that_compares_nothing_says_so(
    devices: str, why: str, run_in_fork: Callable[..., Done]
) -> None:
    done = run_in_fork("print('ran')", options=["--devices", devices, "--verify"])
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "evener: [RUN-024] --verify compared nothing with one device." in done.stderr
    assert why in done.stderr


def test_an_eager_step_becomes_a_function_on_all_devices(
    compared: Callable[..., Done], tmp_path: Path
) -> None:
    # Even shares: on a busy machine, three quarters of the samples may take nine tenths of the time
    # (then a line says that the other device has little to do).
    done = compared(EAGER, "--devices", "cpu:2", "--json")
    notes = done.stderr.splitlines()
    assert notes == [MADE, "evener: train.py:16: lines 16 to 20 run on cpu:0, cpu:1"]
    assert json.loads(done.stdout.splitlines()[-1])["notes"] == notes
    products = json.loads((tmp_path / "operations.json").read_text(encoding="utf-8"))
    assert set(products) == {"CPU:0", "CPU:1"}


@pytest.mark.long
def test_gradients_of_a_function_may_be_applied_by_another(compared: Callable[..., Done]) -> None:
    gradients = "tape.gradient(loss, model.trainable_variables)"
    source = EAGER.replace("        return loss\n", "")
    source = source.replace(f"gradients = {gradients}", f"return loss, {gradients}\n")
    update = "        optimizer.apply_gradients"
    source = source.replace(update, f"    def update(gradients):\n{update}")
    source = source.replace("loss = train_step(x, y)", "update(train_step(x, y)[1])")
    done = compared(source, "--devices", "cpu:2", "--shares", "even")
    notes = done.stderr.splitlines()
    assert notes == [MADE, "evener: train.py:16: lines 16 to 18 run on cpu:0, cpu:1"]


ALONE = (
    "evener: train.py:19: this training step computes every batch on cpu:0; cpu:1 has nothing to do"
)


@pytest.mark.long
def test_an_eager_step_that_prints_is_left_alone_with_its_line(
    compared: Callable[..., Done],
) -> None:
    source = EAGER.replace("return loss", "print('step'); return loss")
    source = source.replace("loss = loss_of(", "print(model.name[:2]); loss = loss_of(")
    done = compared(source, *UNEVEN)
    assert done.stdout.count("se\nstep\n") == 8
    # What follows is said of the run as a whole.
    assert [line.strip() for line in done.stderr.splitlines()][:3] == [
        MADE,
        ALONE,
        "line 17 prevents more: it calls print(): it reads or writes outside",
    ]


@pytest.mark.long
def test_no_hoist_leaves_every_step_as_it_is_written(compared: Callable[..., Done]) -> None:
    done = compared(EAGER, *UNEVEN, "--no-hoist")
    assert [line.strip() for line in done.stderr.splitlines()] == [
        MADE,
        ALONE,
        "put @tf.function above line 15, def train_step, and all devices compute it",
        "evener: train.py:18: cpu:0 did 100 % of the training of this run, cpu:1 had little to do: "
        "gradients are computed eagerly; make a @tf.function of the step, with the batch as an "
        "argument",
    ]


STRATEGIES = """
    import tensorflow as tf
    from tensorflow import distribute
    v1, late = tf.compat.v1.distribute, tf.distribute.experimental
    made = [
        tf.distribute.MirroredStrategy(["/gpu:0"]),
        tf.distribute.OneDeviceStrategy("/gpu:0"),
        tf.distribute.MultiWorkerMirroredStrategy(),
        late.CentralStorageStrategy(),
        late.MultiWorkerMirroredStrategy(),
        v1.MirroredStrategy(),
        v1.OneDeviceStrategy("/cpu:0"),
        v1.experimental.CentralStorageStrategy(),
        distribute.MirroredStrategy(),
        tf.distribute.get_strategy(),
    ]
    assert all(one is made[0] for one in made)
    print(type(made[0]).__module__, made[0].num_replicas_in_sync)
    assert isinstance(made[0], tf.distribute.MirroredStrategy)
    assert isinstance(made[0], late.CentralStorageStrategy)
    assert not isinstance(made[0], tf.distribute.TPUStrategy)
    assert not isinstance("", tf.distribute.MirroredStrategy)
    assert issubclass(tf.distribute.MirroredStrategy, tf.distribute.Strategy)
    class Mine(tf.distribute.MirroredStrategy):
        pass
    assert isinstance(Mine(["/cpu:0"]), Mine) and not isinstance(made[0], Mine)
    import keras
    import numpy as np
    with made[0].scope():
        assert tf.distribute.get_strategy() is made[0]
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0)
    print(sorted({v.value.device[-5:] for v in model.variables}))
    try:
        tf.distribute.ParameterServerStrategy(None)
    except AttributeError:
        print("left alone")
    import os
    os.environ["TF_CONFIG"] = '{"cluster": {"worker": ["a:1", "b:1"]}}'
    def far():
        tf.distribute.MultiWorkerMirroredStrategy()
    far()
"""


@pytest.mark.long
def test_strategies_give_that_of_evener(run: Run, tmp_path: Path) -> None:
    done = run(STRATEGIES)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "evener.strategy.strategy 1",
        "['CPU:0', 'CPU:1']",
        "left alone",
    ]
    gives = "-> evener.Strategy on cpu:0, cpu:1"
    said = done.stderr.splitlines()
    assert said[:10] == [
        f"evener: train.py:6: MirroredStrategy(['/gpu:0']) {gives}",
        f"evener: train.py:7: OneDeviceStrategy('/gpu:0') {gives}",
        f"evener: train.py:8: MultiWorkerMirroredStrategy() {gives}",
        f"evener: train.py:9: CentralStorageStrategy() {gives} (its variables are owned by all "
        "devices, not kept in one place)",
        f"evener: train.py:10: MultiWorkerMirroredStrategy() {gives}",
        f"evener: train.py:11: MirroredStrategy() {gives}",
        f"evener: train.py:12: OneDeviceStrategy('/cpu:0') {gives}",
        f"evener: train.py:13: CentralStorageStrategy() {gives} (its variables are owned by all "
        "devices, not kept in one place)",
        f"evener: train.py:14: MirroredStrategy() {gives}",
        f"evener: train.py:15: tf.distribute.get_strategy() {gives}",
    ]
    assert said[10].startswith("evener: train.py:36: ParameterServerStrategy is left alone:")
    assert said[11].startswith("[RUN-005] The script makes a MultiWorkerMirroredStrategy for 2")
    assert said[-1] == f'  File "{tmp_path / "train.py"}", line 42, in far'
    assert len(said) == 15


SETTINGS = """
    import os
    os.environ["CUDA_VISIBLE_DEVICES"] = "3"
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "1"
    import tensorflow as tf
    import keras
    import numpy as np
    import threading
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_visible_devices([], "CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
    tf.config.threading.set_intra_op_parallelism_threads(7)

    class Mine(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
        def call(self, x):
            return self.dense(x)

    class Own(Mine):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"loss": loss}

    def train(kind):
        model = kind()
        model.compile("sgd", "mse")
        model.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0)
        print(kind.__name__, type(model.distribute_strategy).__name__)

    train(Own)
    keras.utils.clear_session()
    train(Mine)
    thread = threading.Thread(target=train, args=[Mine])
    thread.start()
    thread.join()
    tf.config.set_visible_devices("nonsense")
"""


OWN = """
    import evener
    import keras
    import numpy as np
    import tensorflow as tf
    from evener import Strategy
    for spec in ("cpu:4", "cpu:2", None):
        assert [one.name for one in evener.use_devices(spec)] == ["cpu:0", "cpu:1"]
    for strategy in (evener.Strategy(devices="cpu:1"), Strategy(shares=[1, 1])):
        assert isinstance(strategy, Strategy) and len(strategy.shares) == 2, strategy.shares
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)

    @tf.function
    def step(x):
        return strategy.run(lambda x: tf.reduce_sum(model(x)), args=(x,))

    step(tf.ones([8, 4]))
    print([one.shares for one in Strategy.one_per_device(["cpu:0", "cpu:1"])])
    print(evener.pin("gpu:1")(keras.layers.Dense(3))(np.ones((2, 2))).device[-5:])
"""


@pytest.mark.long
def test_a_script_with_a_strategy_of_evener(run_in_fork: Callable[..., Done]) -> None:
    ended = run_in_fork(OWN, options=["--devices", "cpu:2"])
    assert ended.returncode == 0, ended.stderr
    assert "Strategy(devices='cpu:1') -> evener.Strategy on cpu:0, cpu:1" in ended.stderr
    assert ended.stderr.count("use_devices('cpu:4') is skipped") == 1
    assert "parallelism_threads" not in ended.stderr, "evener asks by it if TensorFlow runs"
    assert ended.stdout.splitlines() == ["[(1.0,), (1.0,)]", "CPU:1"]


@pytest.mark.long
def test_settings_that_come_too_late_and_models_made_anywhere(run: Run) -> None:
    done = run(SETTINGS, options=["--devices", "cpu:2", "--json"])
    # What is wrong without evener is wrong with it.
    assert done.returncode == 1
    said = done.stderr.splitlines()
    assert done.stdout.splitlines()[:-1] == ["Own Strategy", "Mine Strategy", "Mine Strategy"]
    chosen = "evener runs on cpu:0, cpu:1; --devices chooses others"
    notes = [
        "evener: train.py:3: CUDA_VISIBLE_DEVICES=3 may have no effect: TensorFlow has started; "
        "set it in the environment, before evener run",
        f"evener: train.py:11: set_visible_devices is skipped: {chosen}",
        f"evener: train.py:12: set_logical_device_configuration is skipped: {chosen}",
        "evener: train.py:13: set_intra_op_parallelism_threads is skipped: TensorFlow has "
        "started; set TF_NUM_INTRAOP_THREADS in the environment instead",
        "evener: train.py:17: this model trains on cpu:0, cpu:1",
    ]
    assert said[: len(notes)] == notes
    assert said[len(notes)] == "Traceback (most recent call last):"
    assert not [line for line in said if "evener/run" in line or "evener/cli" in line]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["notes"] == notes
    assert [device["device"] for device in report["devices"]] == ["cpu:0", "cpu:1"]


def test_a_plan_the_report_and_the_end_by_a_signal(
    run: Run, run_in_fork: Callable[..., Done], tmp_path: Path
) -> None:
    plan = evener.Plan.data_parallel(["cpu:0", "cpu:1"], shares=[1, 3])
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    source = """
        import os, signal, sys
        import tensorflow as tf
        print(sys.argv, tf.distribute.MirroredStrategy().shares, flush=True)
        os.kill(os.getpid(), signal.{})
    """
    options = ["--plan", "plan.json", "--report"]
    args = ("--", "--devices", "cpu:7", "--help")
    done = run(source.format("SIGINT"), *args, options=options)
    assert done.returncode == -signal.SIGINT
    assert done.stdout == "['train.py', '--devices', 'cpu:7', '--help'] (0.25, 0.75)\n"
    said = done.stderr
    assert f'\nTraceback (most recent call last):\n  File "{tmp_path / "train.py"}", line 5' in said
    assert said.index("KeyboardInterrupt") < said.index("evener run train.py")
    assert "No training step was divided over these devices." in said
    done = run_in_fork(source.format("SIGTERM"), options=[])
    assert done.returncode == -signal.SIGTERM
    assert done.stderr.splitlines()[-1].startswith("evener: train.py:4: MirroredStrategy() -> ")


def test_a_script_that_chooses_another_backend_ends_there(run_in_fork: Callable[..., Done]) -> None:
    source = "import os\nos.environ['KERAS_BACKEND'] = 'torch'\nprint('ran')"
    ended = run_in_fork(source, options=["--devices", "cpu:1"])
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "[RUN-004] The backend of Keras is torch." in ended.stderr
    assert 'train.py", line 2' in ended.stderr and "Traceback" not in ended.stderr


def test_an_option_that_the_script_mentions_is_the_scripts(
    run_in_fork: Callable[..., Done],
) -> None:
    options = ["--devices", "cpu:2"]
    source = "# It has --devices of its own.\nimport sys; print(sys.argv)"
    done = run_in_fork(source, "--devices=cpu:3", options=options)
    assert (done.returncode, done.stdout) == (0, "['train.py', '--devices=cpu:3']\n")
    assert done.stderr == ""


@pytest.mark.long
def test_a_module_trains_on_all_devices(run_forked: RunForked, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("")
    (tmp_path / "package/model.py").write_text(textwrap.dedent(FIT), encoding="utf-8")
    done = run_forked("evener", "run", *UNEVEN, "-m", "package.model", "weights.npy")
    assert (done.returncode, done.stdout) == (0, "['CPU:0', 'CPU:1']\n"), done.stderr


@pytest.mark.parametrize(
    ("options", "verify"), [([], None), (["--verify"], True), (["--no-verify"], False)]
)
def test_the_choice_of_checks_reaches_the_strategy(
    options: list[str], verify: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evener.run import session

    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    layouts: list[session.RunLayout] = []

    def prepare(_: object, layout: session.RunLayout, **__: object) -> session.Session:
        layouts.append(layout)
        raise SystemExit(7)

    monkeypatch.setattr(session, "prepare", prepare)
    assert CliRunner().invoke(app, ["run", *options, str(script)]).exit_code == 7
    assert [layout.verify for layout in layouts] == [verify]
