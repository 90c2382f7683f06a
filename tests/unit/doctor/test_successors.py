"""The tables of what is gone, held to the installed TensorFlow and Keras by using them."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from evener.analysis.api import public
from evener.analysis.api.successors import (
    ARGUMENTS,
    MEMBERS,
    NAMES,
    OVERRIDES,
    Gone,
    GoneArgument,
    GoneMember,
)
from evener.doctor.rules import removed_api

TOOL = Path(__file__).parents[3] / "tools/write_public_names.py"


def has(dotted: str) -> bool:
    """Check a name up, as a program does."""
    head, *rest = dotted.split(".")
    value = {"tf": tf, "keras": keras}[head]
    for part in rest:
        try:
            value = getattr(value, part)
        except (AttributeError, ImportError):
            return False
    return True


@pytest.mark.parametrize("row", [pytest.param(row, id=row.old) for row in NAMES])
def test_what_is_gone_is_gone_and_its_successor_is_there(row: Gone) -> None:
    ways = [row.old] if row.old.startswith("tf.") else [row.old, f"tf.{row.old}"]
    assert row.is_there or not all(has(way) for way in ways)
    assert row.new or row.fix
    if row.new:
        assert has(row.new) and public.exists(row.new)


@pytest.mark.parametrize(
    ("old", "use"),
    [
        ("keras.optimizers.legacy", lambda: keras.optimizers.legacy.Adam(0.1)),
        ("tf.compat.v1.layers", lambda: tf.compat.v1.layers.dense(tf.ones((1, 1)), 1)),
        ("tf.compat.v1.nn.rnn_cell", lambda: tf.compat.v1.nn.rnn_cell.LSTMCell(1)),
        (
            "keras.losses.Reduction.AUTO",
            lambda: keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.AUTO),  # noqa: TID251
        ),
    ],
)
def test_what_is_there_by_name_only_raises(old: str, use: Callable[[], object]) -> None:
    assert [row.is_there for row in NAMES if row.old == old] == [True]
    with pytest.raises((AttributeError, ImportError, ValueError)):
        use()


def test_all_that_raises_is_tried() -> None:
    assert sum(row.is_there for row in NAMES) == 4


def objects(kind: str) -> list[object]:
    if kind == "model":
        return [keras.Sequential()]
    if kind == "optimizer":
        sgd = keras.optimizers.SGD()
        return [sgd, keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam())]
    if kind == "metric":
        return [keras.metrics.Mean(), keras.metrics.Accuracy()]
    if kind == "layer":
        return [keras.layers.Dense(1), keras.layers.Layer()]
    if kind == "dataset":
        return [tf.data.Dataset.range(2), tf.data.Dataset.range(2).batch(1).map(lambda x: x)]
    assert kind == "strategy"
    return [tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy, tf.distribute.Strategy]


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=f"{row.kind}.{row.name}") for row in (*MEMBERS, *OVERRIDES)]
)
def test_no_object_of_the_kind_has_the_member(row: GoneMember) -> None:
    for made in objects(row.kind):
        assert not hasattr(made, row.name)


@pytest.mark.parametrize("row", OVERRIDES, ids=lambda row: row.name)
def test_what_is_overridden_instead_is_there(row: GoneMember) -> None:
    names = re.findall(r"`(\w+)", row.fix)
    assert names and all(hasattr(keras.optimizers.Optimizer, name) for name in names)


def test_add_weight_takes_no_name_by_position() -> None:
    with pytest.raises(ValueError, match="keyword argument"):
        keras.layers.Layer().add_weight("kernel", shape=(3,))


def test_an_attribute_of_an_optimizer_that_is_gone_is_set_without_effect() -> None:
    optimizer = keras.optimizers.SGD(learning_rate=0.25)
    optimizer.lr = 0.5
    assert float(optimizer.learning_rate.numpy()) == 0.25


X, Y = np.ones((2, 1), "float32"), np.ones((2, 1), "float32")


def with_argument(row: GoneArgument) -> object:
    """Call what a row is about with the argument that is gone."""
    given = {row.name: 1}
    name, _, method = row.called.partition(".")
    if name == "model":
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        arguments = {
            "fit": (X, Y),
            "evaluate": (X, Y),
            "predict": (X,),
            "train_on_batch": (X, Y),
            "compile": ("sgd", "mse"),
            "save_weights": ("w.weights.h5",),
        }[method]
        return getattr(model, method)(*arguments, **given)
    if name == "optimizer":
        return getattr(keras.optimizers.SGD(), method)([], **given)
    calls: dict[str, Callable[[], object]] = {
        "keras.optimizers.*": lambda: [
            optimizer(**given) for optimizer in (keras.optimizers.SGD, keras.optimizers.Adam)
        ],
        "keras.layers.*": lambda: keras.layers.Dense(1, **given),
        "keras.layers.BatchNormalization": lambda: keras.layers.BatchNormalization(**given),
        "keras.mixed_precision.LossScaleOptimizer": lambda: (
            keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(), **given)
        ),
        "keras.utils.to_categorical": lambda: keras.utils.to_categorical([0, 1], **given),
        "keras.mixed_precision.Policy": lambda: keras.mixed_precision.Policy("float32", **given),
        "keras.callbacks.ModelCheckpoint": lambda: keras.callbacks.ModelCheckpoint(
            "a.keras", **given
        ),
        "keras.callbacks.TensorBoard": lambda: keras.callbacks.TensorBoard(**given),
        "keras.Model": lambda: keras.Model(**given),
        "tf.distribute.MirroredStrategy": lambda: tf.distribute.MirroredStrategy(**given),
    }
    return calls[row.called]()


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=f"{row.called}({row.name})") for row in ARGUMENTS]
)
def test_the_argument_is_refused_or_ignored(
    row: GoneArgument, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if row.is_ignored:
        with pytest.warns(UserWarning, match="no longer supported"):
            with_argument(row)
        return
    with warnings.catch_warnings(), pytest.raises((TypeError, ValueError), match=row.name):
        warnings.simplefilter("ignore")
        with_argument(row)


ENDINGS = ("", ".keras", ".h5", ".hdf5", ".weights.h5", ".ckpt", ".tf", ".pb")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ending", ENDINGS)
def test_endings_are_taken_where_the_rule_says_so(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    checkpoint = keras.callbacks.ModelCheckpoint
    name = f"file{ending}"
    saves: list[tuple[Callable[[], object], tuple[str, ...]]] = [
        (lambda: model.save(name), removed_api.WHOLE),
        (lambda: model.save_weights(name), removed_api.WEIGHTS),
        (lambda: checkpoint(name), removed_api.CHECKPOINT),
        (lambda: checkpoint(name, save_weights_only=True), removed_api.WEIGHTS),
    ]
    for save, endings in saves:
        if name.endswith(endings):
            save()
        else:
            with pytest.raises(ValueError, match="file"):
                save()


@pytest.mark.parametrize("module", public.NOT_IMPORTED)
def test_parts_of_tensorflow_that_are_attributes_only(module: str) -> None:
    part = getattr(tf, module.rpartition(".")[2])
    name = next(name for name in dir(part) if name[0].isupper())
    assert not public.missing(f"{module}.{name}")
    with pytest.raises(ImportError):
        exec(f"from {module} import {name}")


def test_a_folder_cannot_be_loaded(tmp_path: Path) -> None:
    tf.saved_model.save(tf.Module(), str(tmp_path / "saved"))
    with pytest.raises(ValueError, match="File format not supported"):
        keras.models.load_model(tmp_path / "saved")


def test_the_list_of_names_is_that_of_the_installed_packages() -> None:
    spec = importlib.util.spec_from_file_location("write_public_names", TOOL)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    known = public._data()
    for package in ("tensorflow", "keras"):
        assert tool.names_of(package) == known["names"][package], f"run {TOOL.name}"
    assert tool.arguments_of_keras() == known["arguments"], f"run {TOOL.name}"
    assert public.version_of("tensorflow") == ".".join(tf.__version__.split(".")[:2])
    assert public.version_of("keras") == ".".join(keras.__version__.split(".")[:2])


def test_what_is_no_argument_raises() -> None:
    made = {
        "keras.layers.Dense": lambda **other: keras.layers.Dense(2, **other),
        "keras.layers.LSTM": lambda **other: keras.layers.LSTM(2, **other),
        "keras.layers.BatchNormalization": keras.layers.BatchNormalization,
        "keras.layers.Bidirectional": lambda **other: keras.layers.Bidirectional(
            keras.layers.LSTM(2), **other
        ),
        "keras.optimizers.Adam": keras.optimizers.Adam,
        "keras.callbacks.TensorBoard": keras.callbacks.TensorBoard,
        "keras.losses.MeanSquaredError": keras.losses.MeanSquaredError,
        "keras.metrics.AUC": keras.metrics.AUC,
    }
    for name, make in made.items():
        known = public.arguments_of(name)
        assert known is not None and "no_argument" not in known
        make()
        with pytest.raises((TypeError, ValueError), match="no_argument"):
            make(no_argument=1)
    assert len(public._data()["arguments"]) > 300
