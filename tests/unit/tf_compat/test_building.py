from __future__ import annotations

import keras
import pytest

from evener.tf_compat.building import build_from_specs

BATCH = (keras.KerasTensor((None, 3)), keras.KerasTensor((None, 1)))


@pytest.mark.usefixtures("logical_cpus")
def test_everything_that_a_step_uses_is_made() -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    build_from_specs(model, BATCH)
    assert model.built
    assert model.optimizer.built
    assert len(model.metrics_variables) == 4


@pytest.mark.usefixtures("logical_cpus")
def test_what_cannot_be_built_is_left_to_the_step() -> None:
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    build_from_specs(model, BATCH)
    assert model.built
