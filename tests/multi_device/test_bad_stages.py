"""Plans with stages that do not fit a model: an error that names the layer, and nothing lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import numpy as np
import pytest
from keras import layers

from evener import Strategy
from evener.plan import Plan, PlanDevice, Replica, Stage

from .mistakes import TWO, acts_as_plain_keras, data, plain_like, refused


def plan(
    *stages: Sequence[str],
    num_micro_batches: int = 1,
    in_flight: int = 1,
    recompute: Sequence[str] = (),
) -> Plan:
    """Return a plan whose stages take turns on two stand-ins."""
    replica = Replica(
        share=1,
        num_micro_batches=num_micro_batches,
        in_flight=in_flight,
        stages=tuple(
            Stage(device=TWO[k % 2], layers=tuple(names)) for k, names in enumerate(stages)
        ),
    )
    return Plan(
        devices=tuple(map(PlanDevice.named, TWO)), replicas=(replica,), recompute=tuple(recompute)
    )


def chain() -> keras.Model:
    """Return four layers in line, the third recurrent."""
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(6, name="first"),
            layers.Reshape((3, 2), name="shape"),
            layers.LSTM(3, name="memory"),
            layers.Dense(1, name="last"),
        ]
    )


def compiled(given: Plan, build: Callable[[], keras.Model] = chain) -> keras.Model:
    """Build and compile under a plan."""
    with Strategy(given).scope():
        model = build()
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.mark.parametrize(
    ("given", "code", "names"),
    [
        (plan(["first", "m*"], ["shape", "mem*", "last"]), "ENG-041", ["memory", "m*", "mem*"]),
        (plan(["first", "shape"], ["memori", "last"]), "ENG-042", ["memori", "/memory/"]),
        (plan(["first", "memory"], ["shape", "lst"]), "ENG-042", ["'lst'", "/last'"]),
        (plan(["*"], recompute=["firsts"]), "ENG-042", ["firsts", "/first'", "recompute"]),
    ],
)
def test_a_plan_that_does_not_fit_the_model(given: Plan, code: str, names: list[str]) -> None:
    model = compiled(given)
    refused(model, lambda: model.fit(*data(), verbose=0), code, *names)
    refused(model, lambda: model.evaluate(*data(), verbose=0), code, *names)
    refused(model, lambda: model.predict(data()[0], verbose=0), code, *names)


def test_a_pattern_for_another_program_is_fine_with_every_optimizer() -> None:
    """Slots, such as those of Adam, belong to no layer that a stage is missing for."""
    with Strategy(plan(["first", "shape"], ["memory", "last", "other"])).scope():
        model = chain()
        model.compile("adam", "mse")
    assert np.isfinite(model.train_on_batch(*data()))


@pytest.mark.long
@pytest.mark.parametrize(
    "given",
    [
        plan(["first", "shape"], ["last"], num_micro_batches=2),  # no stage for a layer
        plan(["first"], ["shap", "memory", "last"]),  # only a layer without weights is left out
        plan(["first", "memory"], ["shape", "last"], num_micro_batches=2),  # out of line
        plan(["last"], ["first", "shape", "memory"], num_micro_batches=2),  # backwards
        plan(["first", "shape", "memory"], ["memory/*", "last"]),  # through a layer
        plan(["first", "shape"], ["memory", "last"], num_micro_batches=9),  # more than samples
    ],
    ids=["in no stage", "a reshape alone", "out of line", "backwards", "through", "many"],
)
def test_stages_that_are_unwise_and_not_wrong(given: Plan) -> None:
    """They say where and when something is computed, and never what."""
    model = compiled(given)
    reference = plain_like(model, chain, keras.optimizers.SGD(0.1))

    def act(trained: keras.Model) -> object:
        history = trained.fit(*data(14), batch_size=7, shuffle=False, verbose=0).history
        return history["loss"], trained.evaluate(*data(3), verbose=0, return_dict=True)["loss"]

    acts_as_plain_keras(model, reference, act)
    predicted = model.predict(data(3)[0], verbose=0)
    np.testing.assert_allclose(predicted, reference.predict(data(3)[0], verbose=0), rtol=1e-4)


def test_an_error_of_a_step_leaves_the_model_usable() -> None:
    model = compiled(plan(["first", "shape"], ["memory", "last"], num_micro_batches=2))
    before = model.get_weights()
    with pytest.raises(Exception, match=r"(?i)shape|size|samples|incompatible|equal"):
        model.train_on_batch(data(16)[0], data(12)[1])
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    assert np.isfinite(model.train_on_batch(*data()))
    assert not np.array_equal(before[0], model.get_weights()[0])
