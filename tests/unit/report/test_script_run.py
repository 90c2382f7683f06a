from __future__ import annotations

import io
import json

import keras
import pytest
import tensorflow as tf
from rich.console import Console

from evener import Strategy
from evener.report.script_run import ScriptRun, print_report, report_of


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


def test_the_table(report: ScriptRun) -> None:
    out = io.StringIO()
    print_report(report, as_json=False, console=Console(file=out, width=100))
    text = out.getvalue()
    assert "evener run train.py" in text
    assert "75.0 %" in text
    assert "  evener: train.py:1: replaced\n" in text
    assert "Changes of shares" not in text


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
    out = io.StringIO()
    print_report(report, as_json=False, console=Console(file=out, width=100))
    assert "Gathered on one device:\n" in out.getvalue()


def test_the_json_is_one_line_on_standard_error(
    report: ScriptRun, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(report, as_json=True)
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    said = json.loads(line)
    assert sorted(said) == ["changes", "devices", "gathered", "notes", "script"]
    assert said["devices"][0]["owned"] == {"num_variables": 1, "num_bytes": 24}
