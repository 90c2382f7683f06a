"""Steps that nobody decorated give what plain Python gives, on all devices or on one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.run.hoister import Hoister
from evener.run.regions import HOOK
from evener.run.script import Notes

from .eager_steps import CASES, PRELUDE


def main_module(path: str, **names: object) -> ModuleType:
    """Put a module of a file in the place of ``__main__``, as Python and `evener run` do."""
    module = ModuleType("__main__")
    module.__file__ = path
    vars(module).update(names)
    sys.modules["__main__"] = module
    return module


@pytest.fixture(autouse=True)
def other_main(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the main module of the test run back behind each test."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


def run_as_written(source: str, path: str) -> dict[str, Any]:
    module = main_module(path)
    exec(compile(source, path, "exec"), vars(module))
    return vars(module)


def run_hoisted(source: str, path: str) -> tuple[dict[str, Any], Hoister]:
    strategy = evener.Strategy(devices=["cpu:0", "cpu:1"], shares=[3, 1])
    hoister = Hoister(strategy, Notes(), is_outside=lambda: not tf.distribute.has_strategy())
    found = hoister.rewritten(source, path, is_module=False)
    module = main_module(path, **{HOOK: hoister})
    exec(compile(source if found is None else found.tree, path, "exec"), vars(module))
    return vars(module), hoister


@pytest.mark.parametrize("name", CASES)
def test_the_values_are_those_of_plain_python(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    case, path = CASES[name], str(tmp_path / "train.py")
    source = PRELUDE + case.text
    Path(path).write_text(source, encoding="utf-8")
    expected = run_as_written(source, path)
    actual, hoister = run_hoisted(source, path)
    assert len(expected["out"]) > 3
    assert [type(value) for value in actual["out"]] == [type(value) for value in expected["out"]]
    np.testing.assert_allclose(actual["out"], expected["out"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(actual["w"], expected["w"], rtol=1e-5, atol=1e-6)
    for got, wanted in zip(
        actual["model"].get_weights(), expected["model"].get_weights(), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    output = capfd.readouterr()
    _, begins, reason = case.outcome.rpartition("then: ")
    runs = "run on cpu:0, cpu:1" in output.err
    assert runs == (reason == "all" or bool(begins)), hoister.reasons()
    if reason not in ("all", "one"):
        assert any(reason in text for text in hoister.reasons()), hoister.reasons()
    if reason == "all" and name.startswith("a number: "):
        assert not hoister.reasons()
    half = len(output.out) // 2
    assert output.out[:half] == output.out[half:]
