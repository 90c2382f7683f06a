"""What people write, unchanged under `evener run`: all devices, the results of plain Python."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli.forked import UNEVEN, Run

PROGRAMS = Path(__file__).parents[1] / "programs" / "typical"
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py"))
# What these do within a step cannot be a part of a graph with the same numbers.
ON_ONE_DEVICE = {
    "vae": "tf.random draws other numbers in a function than eagerly; draw them before the tape",
}


def test_there_are_fifteen() -> None:
    assert len(NAMES) == 15


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", NAMES)
def test_it_gives_the_results_of_plain_python(name: str, run_forked: Run, tmp_path: Path) -> None:
    script = str(PROGRAMS / f"{name}.py")
    expected = run_forked("one device", script, "expected.npz")
    assert expected.returncode == 0, expected.stderr
    done = run_forked("evener", *UNEVEN, script, "results.npz")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(expected.stdout)
    with np.load(tmp_path / "expected.npz") as one, np.load(tmp_path / "results.npz") as all_:
        assert one.files == all_.files
        for key in one.files:
            np.testing.assert_allclose(all_[key], one[key], rtol=1e-5, atol=1e-5)
    products = json.loads((tmp_path / "operations.json").read_text(encoding="utf-8"))
    reason = ON_ONE_DEVICE.get(name)
    if reason is None:
        assert set(products) == {"CPU:0", "CPU:1"}, (products, done.stderr)
        assert "has nothing to do" not in done.stderr
    else:
        assert set(products) == {"CPU:0"}, products
        assert reason in done.stderr
