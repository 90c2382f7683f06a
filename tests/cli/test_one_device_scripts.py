"""Scripts written for one device, unchanged under `evener run`: all devices, equal results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli.forked import UNEVEN, Run

SCRIPTS = Path(__file__).parents[1] / "programs" / "one_device"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))
# Nothing in it is traced, and tracing could change what it means.
EAGER = "step_without_decorator"


def test_there_are_ten() -> None:
    assert len(NAMES) == 10


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_it_gives_the_results_of_one_device(name: str, run_forked: Run, tmp_path: Path) -> None:
    script = SCRIPTS / f"{name}.py"
    expected = run_forked("one device", str(script), "expected.npz")
    assert expected.returncode == 0, expected.stderr
    done = run_forked("evener", *UNEVEN, str(script), "results.npz")
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "expected.npz") as one, np.load(tmp_path / "results.npz") as all_:
        assert one.files == all_.files
        for key in one.files:
            np.testing.assert_allclose(all_[key], one[key], rtol=1e-5, atol=1e-5)
    products = json.loads((tmp_path / "operations.json").read_text(encoding="utf-8"))
    used = {"CPU:0"} if name == EAGER else {"CPU:0", "CPU:1"}
    assert set(products) == used, products
    said = "\n".join(done.stderr.splitlines()[:-1])
    assert ("has nothing to do" in said) == (name == EAGER)
    if name == EAGER:
        line = script.read_text(encoding="utf-8").splitlines().index("def train_step(a, b):") + 1
        assert f"put @tf.function above line {line}, def train_step" in said
