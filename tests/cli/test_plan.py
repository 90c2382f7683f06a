from __future__ import annotations

import errno
import json
import os
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.commands import run
from cli.forked import Run
from evener.cli import app
from evener.cli.plan import _next_step
from evener.clusters import cluster_named, datasheet_profile, model_named
from evener.errors import EvenerWarning, RunError
from evener.plan import Plan
from evener.plan.profile_files import profile_to_json, read_profile
from evener.profile import (
    Cluster,
    ClusterDevice,
    CostProfile,
    Curve,
    LayerCosts,
    LayerTimes,
    ModelCosts,
)
from evener.run import first_step as step_costs
from evener.run.first_step import Answer, ProcessResult, StepCosts

SCRIPT = """
    import sys
    import keras
    import numpy as np
    layers = [keras.layers.Dense(32, name=f"dense_{k}") for k in range(3)]
    model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1, name="head")])
    model.compile("adam", "mse")
    x = np.ones((64, 8), "float32")
    if "silent" in sys.argv:
        raise SystemExit(3)
    if "no-step" not in sys.argv:
        epochs = 15 if "long" in sys.argv else 1
        model.fit(x, x[:, :1], batch_size=32, epochs=epochs, verbose=0)
    open("trained", "w").close()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    (tmp_path / "plan.json").write_text(
        Plan.data_parallel(["gpu:0", "gpu:1"], shares=[1, 1]).to_json(), encoding="utf-8"
    )
    return tmp_path


def test_a_script_is_measured_planned_and_run(folder: Path, run_forked: Run) -> None:
    first = run(
        *"plan --devices cpu:2 --save-profile costs.json --out best.json train.py".split(),
        folder=folder,
    )
    assert first.returncode == 0, first.stderr
    assert "A step of 32 samples" in first.stdout
    assert "even shares" in first.stdout or "cpu:0 alone" in first.stdout
    assert "all 4 layers measured now" in first.stdout
    assert not (folder / "trained").exists()
    costs = read_profile(folder / "costs.json")
    assert [layer.name for layer in costs.model.layers] == ["dense_0", "dense_1", "dense_2", "head"]
    assert costs.model.layers[1].weight_bytes == (32 * 32 + 32) * 4
    assert costs.model.layers[1].optimizer_bytes == 2 * (32 * 32 + 32) * 4
    assert costs.times
    plan = Plan.from_json((folder / "best.json").read_text(encoding="utf-8"))
    assert plan.predicted is not None

    again = run(*"plan --profile costs.json --batch-size 32 --json".split(), folder=folder)
    assert again.returncode == 0, again.stderr
    assert Plan.from_json(again.stdout) == plan

    ran = run_forked("evener", *"run --plan best.json train.py".split())
    assert ran.returncode == 0, ran.stderr
    assert (folder / "trained").exists()

    # Layers are not measured again, but for --remeasure.
    known = run(*"plan --devices cpu:2 --json train.py".split(), folder=folder)
    assert known.returncode == 0, known.stderr
    assert Plan.from_json(known.stdout).predicted is not None
    assert "4 of 4 layers from earlier runs, since 20" in known.stderr


def write_costs(folder: Path, times: LayerTimes, *, num_devices: int) -> None:
    names = ["dense_0", "dense_1", "dense_2", "head"]
    devices = tuple(ClusterDevice(name=f"cpu:{k}", type=f"cpu {k}") for k in range(num_devices))
    costs = CostProfile(
        model=ModelCosts(name="train.py", layers=tuple(LayerCosts(name=name) for name in names)),
        cluster=Cluster(devices=devices),
        times={device.type: (times,) * 4 for device in devices},
    )
    (folder / "costs.json").write_text(profile_to_json(costs), encoding="utf-8")


def test_updates_of_a_run_on_one_device_are_left_out(folder: Path, command: Run) -> None:
    seconds = LayerTimes(
        forward=Curve(((32, 10.0),)), backward=Curve(((32, 15.0),)), update_seconds=5.0
    )
    write_costs(folder, seconds, num_devices=1)
    steps = {"num_steps": 24, "samples": [32], "step_seconds": 13.0, "with_updates": True}
    steps |= {"busy_seconds": {"cpu:0": 12.0}, "hardware": {"cpu:0": "cpu 0"}}
    plan = json.loads(Plan.data_parallel(["cpu:0"]).to_json())
    (folder / "run.json").write_text(json.dumps({"plan": plan, "steps": steps}))
    back = command(*"plan --profile costs.json --from-run run.json --json".split())
    assert back.returncode == 0, back.stderr
    predicted = Plan.from_json(back.stdout).predicted
    assert predicted is not None
    assert dict(predicted.busy_seconds) == pytest.approx({"cpu:0": 12.0 * 100 / 120})


@pytest.mark.long
def test_what_a_run_measured_flows_back(folder: Path, run_forked: Run) -> None:
    """The costs are made up: a step of two minutes is one that no run confirms."""
    half_a_minute = LayerTimes(forward=Curve(((32, 15.0),)), backward=Curve(((32, 15.0),)))
    write_costs(folder, half_a_minute, num_devices=2)
    (folder / "plan.json").write_text(
        Plan.data_parallel(["cpu:0", "cpu:1"], shares=[3, 1]).to_json(), encoding="utf-8"
    )
    words = "plan --profile costs.json --batch-size 32 --check plan.json --out wrong.json"
    assert run(*words.split(), folder=folder).returncode == 0

    words = "run --plan wrong.json --report-file run.json train.py long"
    ran = run_forked("evener", *words.split())
    assert ran.returncode == 0, ran.stderr
    assert "[PROF-055] A step took " in ran.stderr
    assert "the plan predicted 2 min 0 s." in ran.stderr
    assert "What differs most: cpu:" in ran.stderr
    again = "evener run --report-file times.json --plan wrong.json train.py long; then "
    assert f"{again}evener plan --from-run times.json --devices cpu:2 train.py long" in ran.stderr

    words = "plan --profile costs.json --from-run run.json --check plan.json --json"
    back = run(*words.split(), folder=folder)
    assert back.returncode == 0, back.stderr
    predicted = Plan.from_json(back.stdout).predicted
    steps = json.loads((folder / "run.json").read_text(encoding="utf-8"))["steps"]
    assert predicted is not None
    assert (predicted.batch_size, steps["num_steps"]) == (32, 24)
    assert dict(predicted.busy_seconds) == pytest.approx(steps["busy_seconds"])
    assert "cpu 1: times 0.0" in back.stderr

    other = run(*words.split(), "--batch-size", "64", folder=folder)
    assert other.returncode == 2
    assert "[PROF-054]" in other.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("--model bert-large-128 --batch-size 32", 0, ("gpu:0", "times as long")),
        ("--model gpt3-1.3b --batch-size 32 --check plan.json", 1, ("Does not fit: gpu:1 needs",)),
        ("--model gpt3-13b --batch-size 4", 1, ("[PLAN-043]",)),
        ("--model bert-large-128 --batch-size 32 --check plan.json --json", 0, ()),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_published_model_on_a_described_cluster(
    words: str, code: int, says: tuple[str, ...], command: Run
) -> None:
    done = command("plan", "--cluster", "rtx3090-rtx3060", *words.split())
    assert done.returncode == code, done.stderr
    assert all(each in done.stdout + done.stderr for each in says)
    if "--json" in words:
        assert json.loads(done.stdout)["predicted"]["step_seconds"] > 0.3


@pytest.mark.long
def test_a_script_on_cards_that_are_not_here(folder: Path) -> None:
    words = ("plan", "--cluster", "rtx3090-rtx3060", "--batch-size", "4096")
    found = run(*words, "train.py", folder=folder)
    assert found.returncode == 0, found.stderr
    assert not (folder / "trained").exists()
    assumed = found.stdout.partition("\nAssumed\n")[2]
    assert "nothing was measured" in assumed and "rtx3060: 45%" in assumed
    assert "gpu:0 alone" in found.stdout or "gpu:0 " in found.stdout
    assert "evener plan --cluster rtx3090-rtx3060 --out plan.json train.py" in found.stderr
    assert "on the machine that has these devices" in found.stderr
    written = run(*words, "--json", "--out", "new.json", "train.py", folder=folder)
    plan = Plan.from_json((folder / "new.json").read_text(encoding="utf-8"))
    assert set(plan.device_names) <= {"gpu:0", "gpu:1"} and plan.predicted is not None
    assert "Assumed" in written.stderr and json.loads(written.stdout)
    checked = run(*words, "--check", "plan.json", "train.py", folder=folder)
    assert checked.returncode == 0, checked.stderr
    assert "even" in checked.stdout or "data parallel" in checked.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("args", "says"),
    [("no-step", "without computing gradients"), ("silent", "it ended with exit code 3")],
)
def test_no_training_step(args: str, says: str, folder: Path) -> None:
    found = run("plan", "--devices", "cpu:2", "train.py", args, folder=folder)
    assert found.returncode == 1
    assert "[RUN-030]" in found.stderr
    assert says in found.stderr


@pytest.mark.long
def test_batches_of_no_known_size(folder: Path) -> None:
    # A step of one's own that is given no data set of the strategy's.
    source = textwrap.dedent(SCRIPT).replace(
        "model.fit(x, x[:, :1], batch_size=32, epochs=epochs, verbose=0)",
        """import tensorflow as tf

    strategy = tf.distribute.get_strategy()
    @tf.function
    def train(batches):
        strategy.run(model.train_step, args=(next(batches),))
    train(iter(tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(32)))""",
    )
    (folder / "train.py").write_text(source, encoding="utf-8")
    found = run("plan", "--devices", "cpu:2", "train.py", folder=folder)
    assert found.returncode == 2
    assert "[RUN-031]" in found.stderr
    found = run(*"plan --devices cpu:2 --batch-size 16 train.py".split(), folder=folder)
    assert found.returncode == 0, found.stderr
    assert "A step of 16 samples" in found.stdout


def test_layers_that_cannot_be_measured_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = datasheet_profile(model_named("resnet-50"), cluster_named("a100-8"))
    answer = Answer(
        process=ProcessResult(exit_code=0, output=""),
        outcome="found",
        measured=StepCosts(
            profile=profile, batch_size=8, not_measured=("words: a string cannot be made up",)
        ),
    )
    monkeypatch.chdir(folder)
    monkeypatch.setattr(step_costs, "ask", lambda *_, **__: answer)
    with pytest.warns(EvenerWarning, match="PROF-020.*\n.*words: a string cannot"):
        done = CliRunner().invoke(app, ["plan", "--json", "train.py"])
    assert done.exit_code == 0
    assert Plan.from_json(done.stdout).predicted is not None


def test_the_schema_is_printed() -> None:
    ended = CliRunner().invoke(app, ["plan", "--schema"])
    assert ended.exit_code == 0
    assert json.loads(ended.stdout)["title"] == "Plan"


PROFILE = datasheet_profile(model_named("resnet-50"), cluster_named("rtx3090-rtx3060"))
PLANNED = ["plan", "--batch-size", "32", "--profile", "costs.json"]


@pytest.fixture
def costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "costs.json").write_text(profile_to_json(PROFILE), encoding="utf-8")
    return tmp_path


def test_a_full_disk_does_not_lose_the_plan(costs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Path, text: str, **_: object) -> None:
        file.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    done = CliRunner().invoke(app, [*PLANNED, "--out", "best.json"])
    assert isinstance(done.exception, RunError)
    assert done.exception.code == "RUN-043"
    assert "No space left on device" in done.exception.why
    assert Plan.from_json(done.stdout[done.stdout.index("{\n") :]).predicted is not None
    assert not (costs / "best.json").exists()
    done = CliRunner().invoke(app, [*PLANNED, "--json", "--out", "best.json"])
    assert Plan.from_json(done.stdout).predicted is not None


def test_the_command_that_runs_the_plan_is_told(costs: Path) -> None:
    done = CliRunner().invoke(app, [*PLANNED, "--out", "best of all.json"])
    assert done.exit_code == 0
    told = "To train by this plan: evener run --plan 'best of all.json' SCRIPT"
    assert done.stderr.splitlines()[-1] == told


@pytest.mark.parametrize(
    ("devices", "out", "told"),
    [
        (["gpu:0"], None, "evener run --plan auto train.py -x"),
        (["gpu:0"], "best.json", "evener run --plan best.json train.py -x"),
        (
            ["worker:0/gpu:0", "worker:1/gpu:0"],
            "best.json",
            "evener launch --workers 2 --plan best.json train.py -x",
        ),
    ],
)
def test_a_plan_for_workers_is_run_by_launch(
    devices: list[str], out: str | None, told: str
) -> None:
    given = None if out is None else Path(out)
    found = _next_step(Plan.data_parallel(devices), "train.py -x", given)
    assert found == f"To train by this plan: {told}"


def test_a_plan_is_checked_with_the_costs_of_a_script(costs: Path) -> None:
    (costs / "plan.json").write_text(Plan.data_parallel(["gpu:0"]).to_json(), encoding="utf-8")
    done = CliRunner().invoke(app, ["plan", "--check", "plan.json"])
    assert done.exit_code == 2
    assert "evener plan --check plan.json SCRIPT" in " ".join(done.stderr.replace("│", " ").split())
