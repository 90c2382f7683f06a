"""Scripts written for one device, unchanged under `evener run`: all devices, equal results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli.forked import UNEVEN, Run

SCRIPTS = Path(__file__).parents[1] / "programs" / "one_device"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))


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
    assert set(products) == {"CPU:0", "CPU:1"}, products
    assert "has nothing to do" not in done.stderr
