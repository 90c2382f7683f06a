"""`evener run --plan auto`: the plan of `evener plan`, without a file."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

from cli.commands import run

# 1.3 MiB of weights, with Adam's 5 MiB: more than the small device has.
SCRIPT = """
    import sys
    import keras
    import numpy as np
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(256, "tanh", name=f"layer_{k}") for k in range(5)]
    model = keras.Sequential([keras.Input((256,)), *layers, keras.layers.Dense(1, name="head")])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(96, 256)).astype("float32")
    model.fit(x, np.sin(x[:, :1]), batch_size=32, epochs=2, shuffle=False, verbose=0)
    np.save(sys.argv[1], np.concatenate([w.ravel() for w in model.get_weights()]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    return tmp_path


def trained(folder: Path, devices: str, *words: str) -> CompletedProcess[str]:
    done = run("run", "--devices", devices, *words, folder=folder)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.long
def test_it_plans_within_the_memory_and_trains_exactly(folder: Path) -> None:
    devices = "cpu:1@12MiB,cpu:1@4MiB"
    planned = trained(folder, devices, "--plan", "auto", "train.py", "planned.npy")
    said = re.search(r"evener: planned (.+) on (cpu:.+): .+ for a step of 32", planned.stderr)
    assert said, planned.stderr
    trained(folder, "cpu:1", "train.py", "alone.npy")
    both = (np.load(folder / f"{name}.npy") for name in ("planned", "alone"))
    np.testing.assert_allclose(*both, atol=2e-5)


@pytest.mark.long
def test_a_module_is_planned_and_run(folder: Path) -> None:
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "names.py").write_text("NAME = 'module.npy'\n", encoding="utf-8")
    source = textwrap.dedent(SCRIPT).replace("sys.argv[1]", "NAME")
    (package / "train.py").write_text(f"from .names import NAME\n{source}", encoding="utf-8")
    planned = trained(folder, "cpu:2", "--plan", "auto", "-m", "package.train")
    assert "evener: planned " in planned.stderr
    assert "`evener plan -m package.train` says why" in planned.stderr
    assert (folder / "module.npy").exists()
    (folder / "module.npy").unlink()
    # The layers are known from the run.
    shown = run("plan", "--devices", "cpu:2", "-m", "package.train", folder=folder)
    assert shown.returncode == 0, shown.stderr
    assert "from earlier runs" in shown.stdout
    assert not (folder / "module.npy").exists()


@pytest.mark.long
def test_plans_are_tried_in_a_long_run(folder: Path) -> None:
    """The result is that of one device, whichever plan is the fastest on this machine."""
    lines = """
        import tensorflow as tf
        trial_of = lambda: getattr(tf.distribute.get_strategy(), "trial", None)
        def fit():
            return model.fit(x, y, batch_size=32, epochs=1, shuffle=False, verbose=0)
        num_epochs = int(sys.argv[2])
        while True:
            fit()
            print("epoch")
            num_epochs -= 1
            if num_epochs <= 0 and trial_of() is None:
                break
    """
    source = textwrap.dedent(SCRIPT).replace(
        "model.fit(x, np.sin(x[:, :1]), batch_size=32, epochs=2, shuffle=False, verbose=0)",
        f"y = np.sin(x[:, :1])\n{textwrap.dedent(lines)}",
    )
    (folder / "train.py").write_text(source, encoding="utf-8")
    planned = trained(folder, "cpu:2", "--plan", "auto", "train.py", "planned.npy", "0")
    assert re.search(r"evener: tried in steps of this run: cpu:0 alone .+ stays", planned.stderr)
    num_epochs = planned.stdout.count("epoch")
    trained(folder, "cpu:1", "train.py", "alone.npy", f"{num_epochs}")
    both = (np.load(folder / f"{name}.npy") for name in ("planned", "alone"))
    np.testing.assert_allclose(*both, atol=1e-3)


@pytest.mark.long
def test_what_fits_nowhere_ends_before_it_trains(folder: Path) -> None:
    devices = "cpu:1@1MiB,cpu:1@1MiB"
    ended = run("run", "--devices", devices, "--plan", "auto", "train.py", "w.npy", folder=folder)
    assert ended.returncode == 1 and "[PLAN-043]" in ended.stderr
    assert not (folder / "w.npy").exists()
