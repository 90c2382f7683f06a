"""`evener.make_plan`, from models and profiles. Nothing is compared with a number of seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import evener
from evener.clusters import cluster_named, datasheet_profile, model_named
from evener.errors import PlanError, ProfileError
from evener.plan import Plan
from evener.planner import plan_profile
from evener.profiler import measure
from evener.profiler.profile import input_specs, target_specs
from unit.profiler.models import dense, sequence
from unit.profiler.test_measure import Counting


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Counting]:
    """Count calls in the place of measuring them, and keep measurements in a folder of the test."""
    made: list[Counting] = []

    def clock(device: str) -> Counting:
        made.append(Counting())
        return made[-1]

    monkeypatch.setattr(measure, "Clock", clock)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return made


def model(**compiled: Any) -> keras.Model:
    made = sequence((4,), dense(6, "hidden", "tanh"), dense(3, "head"))
    made.compile("adam", **{"loss": "mse", **compiled})
    return made


PROFILE = datasheet_profile(model_named("resnet-50"), cluster_named("rtx3090-rtx3060"))


def test_a_profile_is_planned_for_as_by_the_search() -> None:
    assert evener.make_plan(PROFILE, 32) == plan_profile(PROFILE, 32)


def test_a_model_is_measured_on_the_devices() -> None:
    planned = evener.make_plan(model(), 16, devices=["cpu:1", "cpu:2"])
    assert planned.batch_size == 16
    assert [device.name for device in planned.profile.cluster.devices] == ["cpu:1", "cpu:2"]
    layers = planned.profile.model.layers
    assert [(layer.name, layer.weight_bytes) for layer in layers] == [("hidden", 120), ("head", 84)]
    assert planned.plan.predicted is not None
    assert planned.plan.predicted.batch_size == 16
    # The plan is one that a strategy takes.
    assert evener.Strategy(planned.plan).plan.device_names == planned.plan.device_names


def test_a_model_that_is_made_for_it_has_no_memory() -> None:
    made: list[keras.Model] = []

    def make() -> keras.Model:
        made.append(model())
        return made[-1]

    planned = evener.make_plan(make, 4, devices="cpu:1")
    assert planned.profile.model.weight_bytes == 204
    assert [weights.size for weights in made[0].get_weights()] == [0, 0, 0, 0]


@pytest.mark.long
def test_a_second_plan_measures_nothing(counted: list[Counting]) -> None:
    evener.make_plan(model(), 4, devices="cpu:1")
    first = sum(len(clock.runs) for clock in counted)
    assert first > 0
    evener.make_plan(model(), 4, devices="cpu:1")
    assert sum(len(clock.runs) for clock in counted) == first
    evener.make_plan(model(), 4, devices="cpu:1", remeasure=True)
    assert sum(len(clock.runs) for clock in counted) == 2 * first


def test_a_subclassed_model_needs_the_shapes_of_its_data() -> None:
    class Mine(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="mine")
            self.first, self.second = dense(6, "first"), dense(2, "second")

        def call(self, x: Any) -> Any:
            return self.second(self.first(x))

    mine = Mine()
    mine.compile("sgd", "mse")
    with pytest.raises(ProfileError, match=r"PROF-060.*'mine' is not built"):
        evener.make_plan(mine, 4, devices="cpu:1")
    specs = {"x_spec": tf.TensorSpec([5]), "y_spec": tf.TensorSpec([2])}
    planned = evener.make_plan(mine, 4, devices="cpu:1", **specs)
    assert [layer.name for layer in planned.profile.model.layers] == ["first", "second"]


def test_models_and_profiles_that_are_refused() -> None:
    """One that is not compiled, one of a strategy, and a profile, which has its devices."""
    with pytest.raises(ProfileError, match="PROF-010"):
        evener.make_plan(sequence((4,), dense(2, "a"), dense(1, "b")), 4, devices="cpu:1")
    with evener.Strategy(Plan.data_parallel(["cpu:1", "cpu:2"])).scope():
        owned = model()
    with pytest.raises(ProfileError, match="PROF-061"):
        evener.make_plan(owned, 4, devices="cpu:1")
    with pytest.raises(ProfileError, match="PROF-062"):
        evener.make_plan(PROFILE, 4, devices="gpu:0")


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, True, "many", None])
def test_a_batch_size_that_cannot_be(batch_size: Any) -> None:
    with pytest.raises(PlanError, match="PLAN-042"):
        evener.make_plan(PROFILE, batch_size)


def test_shapes_of_one_input_and_one_target() -> None:
    made = model()
    assert input_specs(made) == tf.TensorSpec([4])
    assert target_specs(made) == tf.TensorSpec([3])
    for loss in ("sparse_categorical_crossentropy", keras.losses.SparseCategoricalCrossentropy()):
        made.compile("adam", loss)
        assert target_specs(made) == tf.TensorSpec([], tf.int32)
    assert target_specs(model(loss=None)) is None


@pytest.mark.parametrize("by_name", [True, False])
def test_shapes_of_several_inputs_and_targets(by_name: bool) -> None:
    left, right = keras.Input((2,), name="left"), keras.Input((3, 1), name="right")
    flat = keras.layers.Flatten()(right)
    joint = keras.layers.Concatenate()([left, flat])
    value, kind = dense(1, "value")(joint), dense(7, "kind")(joint)
    sparse = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if by_name:
        made = keras.Model({"left": left, "right": right}, {"value": value, "kind": kind})
        made.compile("sgd", {"value": "mse", "kind": sparse})
        x, y = input_specs(made), target_specs(made)
        assert x == {"left": tf.TensorSpec([2]), "right": tf.TensorSpec([3, 1])}
        assert y == {"value": tf.TensorSpec([1]), "kind": tf.TensorSpec([], tf.int32)}
    else:
        made = keras.Model([left, right], [value, kind])
        made.compile("sgd", ["mse", sparse])
        assert input_specs(made) == [tf.TensorSpec([2]), tf.TensorSpec([3, 1])]
        assert target_specs(made) == [tf.TensorSpec([1]), tf.TensorSpec([], tf.int32)]
