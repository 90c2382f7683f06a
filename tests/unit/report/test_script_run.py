from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from evener import Plan, Strategy
from evener.base.terminal import text_of
from evener.plan import Predicted
from evener.planner.rebalancing import describe_changes
from evener.planner.run_times import LEAST_STEPS, NUM_FIRST_STEPS, MeasuredRun, RunTimes, read_run
from evener.recording.measured import count_work
from evener.report.script_run import (
    ScriptRun,
    compare_with_plan,
    print_report,
    report_of,
    step_times,
)
from evener.strategy.spot_check import wait_for_checks

AGAIN = "evener plan train.py"


def printed(report: ScriptRun, width: int = 100) -> str:
    return text_of(lambda console: print_report(report, as_json=False, console=console), width)


def model_of(strategy: Strategy, *names: str) -> keras.Model:
    with strategy.scope():
        dense = [keras.layers.Dense(2, name=name) for name in names]
        model = keras.Sequential([keras.Input((3,)), *dense])
        model.compile("sgd", "mse")
    return model


@pytest.fixture
def report(logical_cpus: tuple[str, ...]) -> ScriptRun:
    strategy = Strategy(devices=["cpu:1", "cpu:2"], shares=[3, 1])
    with strategy.scope():
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    return report_of("train.py", strategy, ["evener: train.py:1: replaced"])


def test_the_report_has_every_device_that_computes_or_owns(report: ScriptRun) -> None:
    assert [(d.device, d.share) for d in report.devices[:2]] == [("cpu:1", 0.75), ("cpu:2", 0.25)]
    owned = {d.device: d.owned.num_bytes for d in report.devices}
    assert (owned["cpu:1"], owned["cpu:2"]) == (24, 8)


@pytest.mark.parametrize("owners", ["sharded", "central"])
def test_every_device_of_a_pipeline_has_its_share(
    logical_cpus: tuple[str, ...], owners: str
) -> None:
    stages = {"cpu:1": "first", "cpu:2": "second"}
    plan = Plan.pipeline(stages, num_micro_batches=2, owners=owners)
    strategy = Strategy(plan)
    model_of(strategy, *stages.values()).fit(
        tf.ones([8, 3]), tf.ones([8, 2]), batch_size=4, verbose=0
    )
    report = report_of("train.py", strategy, [])
    shares = {d.device: d.share for d in report.devices}
    assert {name: shares[name] for name in stages} == {"cpu:1": 1.0, "cpu:2": 1.0}
    assert shares.get("cpu:0") is None


PLANS = {
    "pipeline": Plan.pipeline({"cpu:1": "first", "cpu:2": "second"}, num_micro_batches=2),
    "turns": Plan.pipeline([("cpu:1", "first"), ("cpu:2", "second"), ("cpu:1", "third")]),
    "data parallel": Plan.data_parallel(["cpu:1", "cpu:2"], shares=[3, 1]),
}


@pytest.mark.parametrize("name", PLANS)
def test_samples_and_busy_seconds_are_those_of_training(
    name: str, logical_cpus: tuple[str, ...]
) -> None:
    strategy = Strategy(PLANS[name])
    count_work(strategy)
    model = model_of(strategy, "first", "second", "third")
    began = time.perf_counter()
    model.fit(tf.ones([11, 3]), tf.ones([11, 2]), batch_size=4, epochs=2, verbose=0)
    model.predict(tf.ones([8, 3]), verbose=0)
    wall = time.perf_counter() - began
    devices = {d.device: d for d in report_of("train.py", strategy, []).devices}
    expected = [16, 6] if name == "data parallel" else [22, 22]
    assert [devices[device].num_samples for device in ("cpu:1", "cpu:2")] == expected
    for device in ("cpu:1", "cpu:2"):
        assert 0 < devices[device].busy_seconds < wall
    assert all(d.num_samples is None for name, d in devices.items() if name == "cpu:0")


def test_one_device_is_counted(logical_cpus: tuple[str, ...], tmp_path: Path) -> None:
    strategy = Strategy(devices=["cpu:1"])
    count_work(strategy)
    samples = NUM_FIRST_STEPS + LEAST_STEPS + 1
    model_of(strategy, "dense").fit(
        tf.ones([samples, 3]), tf.ones([samples, 2]), batch_size=1, verbose=0
    )
    report = report_of("train.py", strategy, [])
    (device,) = [work for work in report.devices if work.device == "cpu:1"]
    assert device.num_samples == samples
    assert device.busy_seconds > 0
    times = step_times(strategy)
    assert times is not None
    assert (times.num_steps, times.with_updates) == (LEAST_STEPS, True)
    (tmp_path / "run.json").write_text(report.to_json(), encoding="utf-8")
    assert read_run(tmp_path / "run.json").times == times
    found: list[str] = []
    wrong = Predicted(step_seconds=100.0, peak_bytes={}, batch_size=1)
    compare_with_plan(
        dataclasses.replace(strategy.plan, predicted=wrong), strategy, found.append, again=AGAIN
    )
    (text,) = found
    assert "cpu:1 computed passes and updates for" in text


def test_nothing_is_counted_without_a_report(logical_cpus: tuple[str, ...]) -> None:
    strategy = Strategy(PLANS["pipeline"])
    assert not strategy.share_controller.counts
    devices = report_of("train.py", strategy, []).devices
    assert {(d.num_samples, d.busy_seconds) for d in devices} == {(None, None)}


def trained(num_steps: int) -> Strategy:
    """Return the strategy of a small model after so many steps of 8 samples."""
    strategy = Strategy(PLANS["data parallel"])
    count_work(strategy)
    samples = 8 * num_steps
    model_of(strategy, "dense").fit(
        tf.ones([samples, 3]), tf.ones([samples, 2]), batch_size=8, verbose=0
    )
    return strategy


def told(strategy: Strategy, predicted: Predicted | None) -> list[str]:
    found: list[str] = []
    plan = dataclasses.replace(PLANS["data parallel"], predicted=predicted)
    compare_with_plan(plan, strategy, found.append, again=AGAIN)
    return found


def test_a_run_is_compared_with_what_its_plan_predicted(
    logical_cpus: tuple[str, ...], tmp_path: Path
) -> None:
    strategy = trained(NUM_FIRST_STEPS + LEAST_STEPS + 1)
    times = step_times(strategy)
    assert times is not None
    assert (times.num_steps, times.samples) == (LEAST_STEPS, (6, 2))
    assert sorted(times.hardware) == ["cpu:1", "cpu:2"]
    busy = dict(times.busy_seconds)
    right = Predicted(step_seconds=times.step_seconds, peak_bytes={}, busy_seconds=busy)
    assert told(strategy, right) == []
    assert told(strategy, None) == []
    slow = {**busy, "cpu:2": busy["cpu:2"] + 2.0}
    wrong = Predicted(step_seconds=times.step_seconds + 1.0, peak_bytes={}, busy_seconds=slow)
    (text,) = told(strategy, wrong)
    assert text.startswith("[PROF-055] A step took ")
    assert "What differs most: cpu:2 computed for" in text
    assert text.endswith("\n  Fix: Plan again with the times of a run: evener plan train.py")
    # What the report writes is what `evener plan --from-run` reads.
    file = tmp_path / "run.json"
    plan = dataclasses.replace(PLANS["data parallel"], predicted=wrong)
    file.write_text(report_of("train.py", strategy, [], plan=plan).to_json(), encoding="utf-8")
    assert read_run(file) == MeasuredRun(plan=plan, times=times)


def test_a_short_run_is_not_compared(logical_cpus: tuple[str, ...]) -> None:
    strategy = trained(NUM_FIRST_STEPS + 3)
    assert told(strategy, Predicted(step_seconds=100.0, peak_bytes={})) == []


@pytest.mark.parametrize(
    ("busy", "says"),
    [
        ({"cpu:1": 0.4, "cpu:2": 0.3}, "in 60 % of a step no device computes"),
        ({"cpu:1": 0.9, "cpu:2": 0.45}, "cpu:2 computes for 50 % of the time of cpu:1. Next: "),
        ({"cpu:1": 0.9, "cpu:2": 0.9}, "the devices, which compute for most of the step"),
    ],
)
def test_a_report_tells_what_limits_the_run(
    busy: dict[str, float], says: str, report: ScriptRun
) -> None:
    steps = RunTimes(
        num_steps=9,
        samples=(3, 1),
        step_seconds=1.0,
        busy_seconds=busy,
        hardware={},
        with_updates=False,
    )
    text = printed(dataclasses.replace(report, steps=steps), 300)
    (line,) = [line for line in text.splitlines() if line.startswith("What limits it: ")]
    assert says in line
    assert line.endswith("train.py")


def test_the_table(report: ScriptRun) -> None:
    text = printed(report)
    assert "evener run train.py" in text
    assert "75.0 %" in text
    # It was printed when it was made.
    assert "replaced" not in text
    assert "hares changed" not in text
    settled = describe_changes(2, 64, (0.62, 0.38))
    changed = dataclasses.replace(report, changes=("step 8: ...", "step 64: ..."), settled=settled)
    lines = printed(changed).splitlines()
    at = lines.index("Shares changed 2 times; settled at 62:38 after 64 steps:")
    assert lines[at + 1 : at + 3] == ["  step 8: ...", "  step 64: ..."]


def test_what_is_gathered_is_told_of_once(logical_cpus: tuple[str, ...]) -> None:
    strategy = Strategy(devices=["cpu:1", "cpu:2"], shares=[3, 1])
    step = tf.function(lambda x: tf.sort(x, axis=0))
    for size in (4, 6):
        strategy.run(step, args=(tf.ones([size, 3]),))
        strategy.run(tf.function(lambda x: tf.sort(x, axis=0)), args=(tf.ones([size, 3]),))
    report = report_of("train.py", strategy, [])
    assert report.gathered
    assert all("test_script_run.py:" in line for line in report.gathered)
    assert len(set(report.gathered)) == len(report.gathered)
    assert "Gathered on one device:\n" in printed(report)


def test_what_checks_found_is_told_of(
    logical_cpus: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EVENER_VERIFY")
    strategy = Strategy(devices=["cpu:1", "cpu:2"], shares=[3, 1])
    strategy.run(tf.function(lambda x: tf.reduce_sum(x)), args=(tf.ones([6, 3]),))
    wait_for_checks()
    report = report_of("train.py", strategy, [])
    assert report.checks == ("3 samples computed again on one device: equal",)
    assert "Compared with one device:\n" in printed(report)


def test_the_json_is_one_line_on_standard_output(
    report: ScriptRun, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(report, as_json=True)
    out, err = capsys.readouterr()
    assert err == ""
    (line,) = out.splitlines()
    said = json.loads(line)
    keys = ["changes", "checks", "devices", "gathered", "notes", "plan", "script"]
    assert sorted(said) == [*keys, "settled", "steps"]
    assert said["plan"]["replicas"][0]["share"] == 0.75
    assert said["steps"] is None
    assert said["devices"][0]["owned"] == {"num_variables": 1, "num_bytes": 24}
