"""Whatever is wrong with a checkpoint: the one before is used, or an error has a code."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from checkpoint.programs import BATCH, X, Y
from evener import Checkpoint, CheckpointCallback
from evener.checkpoint.callback import read_fit
from evener.errors import CheckpointError, EvenerWarning

pytestmark = pytest.mark.usefixtures("logical_cpus")

FIRST, SECOND = "step-00000013", "step-00000026"
DEEP = "@deep@"
# Their entries have names of the program, and may be there or not; a value of the program.
FREE = (("versions",), ("fit", "history", "logs"), ("fit", "callbacks"), ("fit", "log_bytes"))
PROGRAM = ("position", "position")
# Their attributes are values of the program, too: numbers, texts, and lists and dicts of them.
CALLBACKS = ("fit", "callbacks")


def make_model() -> keras.Model:
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    stack = [keras.layers.Dense(2), keras.layers.Dense(1, use_bias=False)]
    model = keras.Sequential([keras.Input((4,)), *stack])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def fit(model: keras.Model, folder: Path, epochs: int, *callbacks: Any) -> None:
    stopping = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
    given = {"x": X, "y": Y, "batch_size": BATCH, "epochs": epochs, "verbose": 0}
    model.fit(**given, callbacks=[stopping, *callbacks, CheckpointCallback(folder)])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, logical_cpus: Any) -> Path:
    folder = tmp_path_factory.mktemp("damage") / "run"
    fit(make_model(), folder, 2, keras.callbacks.CSVLogger(folder.parent / "log.csv"))
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "run"))


def fields(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(item, dict | list) and (*path, key) != ("plan",):
            yield from fields(item, (*path, key))


def damage(file: Path, path: tuple[Any, ...], change: Callable[[Any, Any], object]) -> None:
    """Change a value of a state file, and give it the checksum that it needs."""
    state = json.loads(file.read_text())["state"]
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    change(inner, path[-1])
    text = json.dumps(state, indent=1, sort_keys=True)
    envelope = {"checksum": hashlib.sha256(text.encode()).hexdigest(), "state": state}
    file.write_text(json.dumps(envelope).replace(f'"{DEEP}"', "[" * 100_000 + "]" * 100_000))


def make_deep(inner: Any, key: Any) -> None:
    inner[key] = DEEP


def make_odd(inner: Any, key: Any) -> None:
    inner[key] = -5 if isinstance(inner[key], list | str) else ["odd"]


def make_large(inner: Any, key: Any) -> None:
    inner[key] = {"of": 10**400} if isinstance(inner[key], list | str | int) else "\ud800"


def remove(inner: Any, key: Any) -> None:
    del inner[key]


@pytest.mark.parametrize("change", [remove, make_odd, make_large, make_deep])
def test_every_field(folder: Path, change: Callable[[Any, Any], object]) -> None:
    file = folder / SECOND / "state.json"
    whole = file.read_text()
    checkpoint = Checkpoint(folder, model=make_model())
    paths = [*fields(json.loads(whole)["state"])]
    assert len(paths) > 100
    for path in paths:
        is_free = any(path[: len(free)] == free and path != free for free in FREE)
        # The items of a list are no fields: variables are compared with those of the program.
        if change is remove and (is_free or isinstance(path[-1], int)):
            continue
        is_of_program = path == PROGRAM or (path[:2] == CALLBACKS and len(path) > 3)
        if is_of_program and change in (make_odd, make_large):
            continue
        damage(file, path, change)
        try:
            with pytest.warns(EvenerWarning, match="CKPT-006"):
                loaded = checkpoint.load(read_fit)
        except CheckpointError as error:
            raise AssertionError(path) from error
        assert loaded is not None and loaded.name == FIRST, path
        file.write_text(whole)


def rename(inner: Any, key: Any) -> None:
    inner[key] += "_of_another_model"


@pytest.mark.parametrize(("change", "code"), [(rename, "CKPT-002"), (remove, "CKPT-015")])
def test_nothing_is_restored_in_part(folder: Path, change: Any, code: str) -> None:
    for name in (FIRST, SECOND):
        damage(folder / name / "state.json", ("variables", 0, "path"), change)
    model = make_model()
    variables = [*model.variables, *model.optimizer.variables]
    before = [*map(np.array, variables), random.getstate()[1], np.random.get_state()[1].copy()]
    with pytest.raises(CheckpointError, match=code):
        fit(model, folder, 3)
    after = [*map(np.array, variables), random.getstate()[1], np.random.get_state()[1]]
    for value, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(value, other)
